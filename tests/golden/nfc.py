#!/usr/bin/env python3
"""Writes nfc.jsonl: [text, its NFC] by Python's unicodedata: tests/golden/nfc.py > tests/golden/nfc.jsonl"""
import json
import random
import unicodedata as unicode

random.seed(1)
characters = [c for c in range(0x110000) if unicode.normalize("NFD", chr(c)) != chr(c)]
marks = [c for c in range(0x110000) if unicode.combining(chr(c))]
for i, c in enumerate(characters):
    if i % 9 == 0 or c < 0xac00 or c > 0xd7a3:
        if c < 0xac00 or c > 0xd7a3 or i % 99 == 0:
            print(json.dumps([unicode.normalize("NFD", chr(c)), unicode.normalize("NFC", chr(c))]))
            if i % 4 == 0:
                print(json.dumps([chr(c), unicode.normalize("NFC", chr(c))]))
for _ in range(600):
    text = "".join(chr(random.choice(characters + marks if random.random() < .5 else marks[:200]) if
                       random.random() < .8 else random.randrange(32, 127)) for _ in range(8))
    print(json.dumps([text, unicode.normalize("NFC", text)]))
