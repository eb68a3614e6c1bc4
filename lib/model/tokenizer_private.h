/* Shared by the tokenizer's files: the splitter (pre.c), the merger (merge.c) and the whole
 * (tokenizer.c). */
#ifndef BATON_MODEL_TOKENIZER_PRIVATE_H
#define BATON_MODEL_TOKENIZER_PRIVATE_H

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "base/map.h"
#include "model/private.h"
#include "model/tokenizer.h"

#define SYMBOL_NONE UINT32_MAX

/* Map from text to a number: open addressing over texts that live elsewhere. */
struct text_map {
	struct text_slot {
		struct text text;
		uint32_t value;
		bool used;
	} *slots;
	size_t mask;
	uint32_t count, capacity;
};

int text_map_init(struct text_map *map, uint32_t capacity);
void text_map_fini(struct text_map *map);
/* Return: the value in the map: the one there was, or @value. The capacity must suffice. */
uint32_t text_map_put(struct text_map *map, struct text text, uint32_t value);
uint32_t text_map_get(const struct text_map *map, struct text text); /* SYMBOL_NONE: absent */

struct tokenizer {
	const struct vocab *vocab;
	const struct model_config *config;
	/* Bytes that each token stands for: [piece_at[id], piece_at[id + 1]) of pieces. */
	char *pieces;
	size_t *piece_at;
	/*
	 * Vocabularies with merges. A symbol is a piece that merges can make: in byte-level BPE
	 * the 256 bytes (symbols 0..255), and every side of a merge and every result, whether or
	 * not it is a token.
	 */
	struct map pairs;        /* left << 32 | right -> rank << 32 | result */
	uint32_t *symbol_ids;    /* token of a symbol, or SYMBOL_NONE */
	struct text *symbol_texts; /* in the byte alphabet */
	uint32_t symbol_count;
	struct text_map symbols; /* symbol_texts -> symbol */
	pcre2_code *patterns[VOCAB_PATTERNS_MAX];
	uint32_t pattern_count;
	/* SPM with scores: where each token stands when ordered by them. */
	uint32_t *ranks;
	uint32_t byte_ids[256]; /* the tokens <0x00>..<0xFF> */
	/* Both: texts of normal tokens -> id (BPE: in raw bytes, only with ignore_merges). */
	struct text_map texts;
	size_t text_bytes_max;
	/* Tokens matched as whole strings: a trie, (node << 8 | byte) -> node, with the id of
	 * the token that ends at a node. */
	struct map trie;
	uint32_t *trie_ids;
	uint32_t trie_count;
	uint64_t trie_first[4]; /* bitmap of first bytes */
};

/* Scratch memory of one tokenize() call. */
struct merge_item {
	uint32_t symbol;       /* with merges; SYMBOL_NONE: nothing merges with it */
	uint32_t start, bytes; /* SPM: stretch of the text */
	uint32_t previous, next;
	uint32_t rank; /* of the pair that starts here; SYMBOL_NONE: none */
	uint32_t result;
};

struct scratch {
	struct merge_item *items;
	size_t item_capacity;
	uint64_t *heap;
	size_t heap_count, heap_capacity;
	pcre2_match_data *match;
	pcre2_match_context *match_context;
	struct token_ids *ids;
};

/* The byte that one character of GPT-2's byte alphabet stands for; 256 or more: none. */
uint32_t tokenizer__alphabet_byte(const char *text, size_t bytes);

int token_ids_push(struct token_ids *ids, uint32_t id);

/* Merges one pre-token (BPE) or one text with its spaces already replaced (SPM). */
int merge__bpe(const struct tokenizer *t, struct scratch *s, struct text piece);
int merge__spm(const struct tokenizer *t, struct scratch *s, struct text text);

/* Compiles the vocabulary's patterns. Return: 0, -ENOMEM or BATON_EFORMAT with the sentence. */
int pre__compile(struct model *model, struct tokenizer *t);
/* Splits @text by the patterns from @level on; each piece goes to merge__bpe(). */
int pre__split(const struct tokenizer *t, struct scratch *s, uint32_t level, struct text text);

/* Where special-token strings count as such. @trusted: [bytes] one flag a byte, or NULL: all. */
int tokenizer__encode(const struct tokenizer *t, struct text text, const uint8_t *trusted,
		      int flags, struct token_ids *ids);

#endif
