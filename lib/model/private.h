/* What the files of lib/model share: the model, its memory, and the raw material that a loader
 * (GGUF or Hugging Face) hands to the common checks and to the tokenizer. */
#ifndef BATON_MODEL_PRIVATE_H
#define BATON_MODEL_PRIVATE_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "model/memory.h"
#include "model/model.h"

/* Borrowed bytes, not NUL-terminated: often a piece of the map. */
struct text {
	const char *data;
	size_t bytes;
};

#define TEXT(literal) ((struct text){ (literal), sizeof(literal) - 1 })

bool text_is(struct text text, const char *value);

enum vocab_kind {
	VOCAB_NONE, /* a file without a tokenizer */
	VOCAB_BPE,
	VOCAB_SPM,
};

/* GGUF's llama_token_type. */
enum vocab_type {
	VOCAB_UNDEFINED,
	VOCAB_NORMAL,
	VOCAB_UNKNOWN,
	VOCAB_CONTROL,
	VOCAB_USER_DEFINED,
	VOCAB_UNUSED,
	VOCAB_BYTE,
	VOCAB_TYPE_COUNT,
};

struct vocab_merge {
	struct text left, right;
};

#define VOCAB_PATTERNS_MAX 8

/* SPM: where the encoder puts a space in front. */
enum space_prefix {
	SPACE_PREFIX_NONE,
	SPACE_PREFIX_ALWAYS, /* of every stretch between special tokens */
	SPACE_PREFIX_FIRST,  /* of the whole text */
};

/* A special token swallows the white space beside it (tokenizer.json's lstrip and rstrip). */
enum {
	VOCAB_STRIP_LEFT = 1,
	VOCAB_STRIP_RIGHT = 2,
};


/* All pointers live as long as the model: in the map, in its memory, or in static storage. */
struct vocab {
	enum vocab_kind kind;
	uint32_t token_count;
	struct text *tokens;
	uint8_t *types;      /* enum vocab_type */
	float *scores;       /* SPM of GGUF files: the best-scored token is merged first */
	uint32_t merge_count;
	struct vocab_merge *merges; /* all others, best first */
	/* BPE: each pattern isolates its matches within what the one before left, in order. */
	struct text patterns[VOCAB_PATTERNS_MAX];
	uint32_t pattern_count;
	bool default_add_bos;  /* what an absent add_bos_token means */
	bool ignore_merges;    /* a pre-token that is a token as a whole is taken at once */
	enum space_prefix space_prefix;
	uint8_t *strips;       /* a token's VOCAB_STRIP_ bits; NULL: none has any */
	bool normalize_nfc;    /* tokenizer.json asks for it; GGUF files never do */
	int32_t unknown_id;
};

struct model_map {
	void *data;
	size_t bytes;
};

struct model {
	struct model_config config;
	struct model_map *maps;
	uint32_t map_count;
	int flags;
	struct tensor *tensors; /* sorted by name */
	uint32_t tensor_count;
	float *rope_divisors;
	const char *chat_template;
	struct vocab vocab;
	struct tokenizer *tokenizer;
	struct memory memory;
	char *error; /* model_open()'s caller's */
	size_t error_bytes;
};

/* Zeroed memory that lives as long as the model; NULL without memory. */
void *model__alloc(struct model *model, size_t count, size_t bytes);
/* NUL-terminated copy. */
char *model__copy(struct model *model, struct text text);
/* Writes the sentence for model_open()'s caller and returns BATON_EFORMAT. */
int model__fail(struct model *model, const char *format, ...)
	__attribute__((format(printf, 2, 3)));
int model__map(struct model *model, const char *path, struct model_map *ret_map);

/* Loaders: fill config (but for what tensors tell), tensors, vocab, chat_template. */
int gguf__load(struct model *model, const char *path);
int hf__load(struct model *model, const char *folder);

/* Sorts the tensors, refuses duplicates; then checks names, shapes and types against the config
 * and derives tied_embeddings, qkv_bias, qk_norm, vocab_count and the rope divisors. */
int model__check_tensors(struct model *model);
int model__check_config(struct model *model);
/* Adds an end-of-generation id once; drops what does not fit. */
void model__add_eos(struct model *model, int64_t id);
/* Adds the control tokens that are known to end a turn. */
void model__find_eos(struct model *model);
/* The rope frequencies' divisors: all @factor. */
int model__rope_linear(struct model *model, double factor);
int model__rope_llama3(struct model *model, double factor, double low, double high,
		       double original_tokens);

/* GGUF's tokenizer.ggml.pre to patterns; -EINVAL when unknown. */
int vocab__set_pre(struct vocab *vocab, struct text pre);

int tokenizer__new(struct model *model, struct tokenizer **ret_tokenizer);
void tokenizer__free(struct tokenizer *t);

#endif
