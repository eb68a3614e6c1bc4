/* Unicode's Normalization Form C, which some tokenizer.json files ask for. */
#ifndef BATON_MODEL_NFC_H
#define BATON_MODEL_NFC_H

#include <stdbool.h>
#include <stddef.h>

#include "base/buf.h"

/* Appends valid UTF-8 @text in NFC. Return: 0 or -ENOMEM. */
int nfc_append(const char *text, size_t bytes, struct buf *out);

#endif
