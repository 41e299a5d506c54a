"""report.py: what was measured, as JSON lines and as tables."""

import json
import os
import platform
import statistics
import subprocess

from statistic import median_interval, ratios


def first_of(path, key):
    try:
        with open(path, encoding="utf-8") as lines:
            for line in lines:
                if line.startswith(key):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return "unknown"


def output_of(*command):
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return done.stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def machine(args, scratch):
    here = os.path.dirname(os.path.abspath(__file__))
    return {
        "name": "peers.machine",
        "cpu": first_of("/proc/cpuinfo", "model name"),
        "processors": os.cpu_count(),
        "memory": first_of("/proc/meminfo", "MemTotal"),
        "kernel": platform.release(),
        "file_system": output_of("stat", "-f", "-c", "%T", scratch),
        "commit": output_of("git", "-C", here, "describe", "--always", "--dirty"),
        "load_before": list(os.getloadavg()),
        "rounds": args.rounds,
    }


def described(options):
    return ", ".join(f"{key} {value}" for key, value in options.items()) or "-"


def figures(table, subject, ours):
    gb = table.bytes / 1e9
    durable = [save["durable_s"] for save in subject.saves]
    ours_durable = [save["durable_s"] for save in ours.saves]
    seconds, low, high = median_interval(durable)
    times, times_low, times_high = median_interval(ratios(durable, ours_durable))
    share, share_low, share_high = median_interval(ratios(table.raw_writes, durable))
    load_times, load_low, load_high = median_interval(ratios(subject.loads, ours.loads))
    load_share = median_interval(ratios(table.raw_reads, subject.loads))
    load_s = statistics.median(subject.loads)
    line = {
        "name": "peers",
        "peer": subject.name,
        "ranks": table.ranks,
        "bytes": table.bytes,
        "rounds": len(durable),
        "seconds": round(seconds, 4),
        "seconds_low": round(low, 4),
        "seconds_high": round(high, 4),
        "gb_per_s": round(gb / seconds, 3),
        "raw_gb_per_s": round(gb / statistics.median(table.raw_writes), 3),
        "ratio_to_raw": round(share, 3),
        "ratio_low": round(share_low, 3),
        "ratio_high": round(share_high, 3),
        "times_ours": round(times, 2),
        "times_ours_low": round(times_low, 2),
        "times_ours_high": round(times_high, 2),
        "returned_seconds": median_of(subject.saves, "returned_s"),
        "stall_ms": round(1e3 * median_of(subject.saves, "stall_s"), 1),
        "load_seconds": round(load_s, 4),
        "load_gb_per_s": round(gb / load_s, 3),
        "load_raw_gb_per_s": round(gb / statistics.median(table.raw_reads), 3),
        "load_ratio_to_raw": round(load_share[0], 3),
        "load_times_ours": round(load_times, 2),
        "load_times_ours_low": round(load_low, 2),
        "load_times_ours_high": round(load_high, 2),
        "save_options": subject.save_options,
        "load_options": subject.load_options,
        "integrity": subject.facts["integrity"],
    }
    if subject.asynchronous:
        line["stall_at_once_ms"] = round(1e3 * median_of(subject.at_once, "stall_s"), 1)
    return line


ROUNDS_OF_90 = 5


def median_of(saves, key):
    return round(statistics.median(save[key] for save in saves), 4)


HEADINGS = (
    "PEER",
    "DURABLE s",
    "GB/s",
    "OF RAW",
    "SAVE/OURS (90 %)",
    "RETURNED s",
    "STALL ms",
    "AT ONCE ms",
    "LOAD s",
    "GB/s",
    "LOAD/OURS (90 %)",
    "OPTIONS save | load",
    "INTEGRITY",
)


def row(line):
    def times(prefix):
        middle, low, high = (line[prefix + end] for end in ("", "_low", "_high"))
        return f"{middle:.2f} ({low:.2f}-{high:.2f})"

    return (
        line["peer"],
        f"{line['seconds']:.2f}",
        f"{line['gb_per_s']:.2f}",
        f"{line['ratio_to_raw']:.2f}",
        times("times_ours"),
        f"{line['returned_seconds']:.2f}",
        f"{line['stall_ms']:.0f}",
        f"{line['stall_at_once_ms']:.0f}" if "stall_at_once_ms" in line else "-",
        f"{line['load_seconds']:.2f}",
        f"{line['load_gb_per_s']:.2f}",
        times("load_times_ours"),
        described(line["save_options"]) + " | " + described(line["load_options"]),
        line["integrity"],
    )


def print_table(rows):
    widths = [max(len(line[i]) for line in rows) for i in range(len(rows[0]))]
    for line in rows:
        cells = [cell.ljust(width) for cell, width in zip(line, widths)]
        print("  ".join(cells).rstrip())


def show(facts, tables):
    for table in tables:
        facts["versions"] = table.versions
    print(json.dumps(facts))
    lines = []
    for table in tables:
        ours = table.subjects[0]
        lines.append([figures(table, s, ours) for s in table.subjects])
        for line in lines[-1]:
            print(json.dumps(line))
        for name, why in table.skips:
            skipped = {"name": "peers", "peer": name, "ranks": table.ranks}
            print(json.dumps({**skipped, "skipped": why}))
    for table, of_table in zip(tables, lines):
        versions = ", ".join(f"{k} {v}" for k, v in table.versions.items())
        raw_write = table.bytes / statistics.median(table.raw_writes) / 1e9
        raw_read = table.bytes / statistics.median(table.raw_reads) / 1e9
        print(
            f"\n{table.ranks} rank(s), {table.bytes / 1e9:.2f} GB, "
            f"{facts['rounds']} rounds, {versions}\n"
            f"raw io_uring loop: {raw_write:.2f} GB/s written and synced, "
            f"{raw_read:.2f} GB/s read"
        )
        headings = HEADINGS
        if facts["rounds"] < ROUNDS_OF_90:  # the interval is all there is
            headings = [word.replace("90 %", "min-max") for word in HEADINGS]
        print_table([headings] + [row(line) for line in of_table])
        for name, why in table.skips:
            print(f"skipped: {name}: {why}")
