/*
 * Text to token ids and back: byte-level BPE (GGUF `gpt2`, tokenizer.json BPE) with the model's
 * pre-tokenizer, and SentencePiece-style (`llama`, SPM) vocabularies. Immutable after open, so
 * any thread may use it.
 */
#ifndef BATON_MODEL_TOKENIZER_H
#define BATON_MODEL_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "model/model.h"

struct tokenizer;

const struct tokenizer *model_tokenizer(const struct model *model);

/* Growing array of ids; zero-initialise, free(ids->v). */
struct token_ids {
	uint32_t *v;
	uint32_t count, capacity;
};

enum {
	TOKENIZE_SPECIAL = 1, /* strings such as <|im_end|> become special ids, else plain text */
	TOKENIZE_ADD_BOS = 2, /* put the BOS in front when the model's config says add_bos */
};

/*
 * tokenize() - append the ids of @text
 * @text: [bytes], may hold NUL; bytes that are not UTF-8 are read as U+FFFD (each maximal
 *        invalid part one, as Python's "replace" does)
 * Time is O(bytes log bytes). Return: 0, -ENOMEM, or -E2BIG when a pattern of tokenizer.json
 * backtracks past its bound or the text is beyond 4 GiB; @ids is as it was then.
 */
int tokenize(const struct tokenizer *t, const char *text, size_t bytes, int flags,
	     struct token_ids *ids);

/* Bytes of one token, appended. Special tokens give their text when @special, else nothing.
 * For SPM the caller of detokenize() gets the leading-space rule right; single pieces keep it. */
void tokenizer_piece(const struct tokenizer *t, uint32_t id, bool special, struct buf *out);
void detokenize(const struct tokenizer *t, const uint32_t ids[], uint32_t count, bool special,
		struct buf *out);
uint32_t tokenizer_vocab_count(const struct tokenizer *t);
bool tokenizer_is_special(const struct tokenizer *t, uint32_t id);
/* True when a lone leading space of the first generated piece is to be dropped (SPM prefix). */
bool tokenizer_is_spm(const struct tokenizer *t);

#endif
