#!/usr/bin/env python3
"""Writes nfc_table.h from Python's unicodedata: python3 lib/model/nfc_table.py > lib/model/nfc_table.h"""
import unicodedata as unicode

MARKS = [(c, unicode.combining(chr(c))) for c in range(0x110000) if unicode.combining(chr(c))]
PAIRS, JOINS = [], []
for c in range(0x110000):
    text = unicode.decomposition(chr(c))
    if text and "<" not in text:
        parts = [int(part, 16) for part in text.split()] + [0]
        # Excluded from composition: what NFC itself takes apart.
        if unicode.normalize("NFC", chr(c)) == chr(c):
            JOINS.append((parts[0], parts[1], c))
        PAIRS.append((c, parts[0], parts[1]))

RUNS = []
for c, order in MARKS:
    if RUNS and RUNS[-1][1] == c - 1 and RUNS[-1][2] == order:
        RUNS[-1][1] = c
    else:
        RUNS.append([c, c, order])


def table(declaration, rows):
    print("\n%s = {" % declaration)
    line = "\t"
    for row in rows:
        item = "{ %s }, " % ", ".join("0x%x" % value for value in row)
        if len(line) + len(item) > 90:
            print(line.rstrip())
            line = "\t"
        line += item
    print(line.rstrip() + "\n};")


print("/* Unicode %s, written by nfc_table.py. */" % unicode.unidata_version)
print("/* clang-format off */")
table("static const struct nfc_run nfc_runs[]", RUNS)
table("static const struct nfc_pair nfc_pairs[]", PAIRS)
table("static const struct nfc_join nfc_joins[]", sorted(JOINS))
