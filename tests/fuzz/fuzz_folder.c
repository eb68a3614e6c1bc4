/* Any bytes as a Hugging Face folder: config.json, tokenizer.json, model.safetensors, one behind
 * the other with a 0xff between (which JSON cannot hold). */
#include "fuzz.h"

#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "model/model.h"
#include "model/tokenizer.h"

static char folder[64];

static void remove_folder(void)
{
	static const char *const names[] = { "config.json", "tokenizer.json", "model.safetensors" };
	char path[128];
	for (size_t i = 0; i < 3; i++) {
		snprintf(path, sizeof(path), "%s/%s", folder, names[i]);
		unlink(path);
	}
	rmdir(folder);
}

static void write_file(const char *name, const uint8_t *data, size_t bytes)
{
	char path[128];
	snprintf(path, sizeof(path), "%s/%s", folder, name);
	FILE *file = fopen(path, "wb");
	FUZZ_CHECK(file);
	FUZZ_CHECK(fwrite(data, 1, bytes, file) == bytes);
	FUZZ_CHECK(fclose(file) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
	static const char text[] = "<s>Hi </s>\n  \xe4\xbd\xa0 123 it's \xff";
	if (!folder[0]) {
		snprintf(folder, sizeof(folder), "/tmp/baton-fuzz-%d-XXXXXX", (int)getpid());
		FUZZ_CHECK(mkdtemp(folder));
		atexit(remove_folder);
	}
	const uint8_t *end = data + bytes, *config = memchr(data, 0xff, bytes);
	const uint8_t *tokenizer = config ? memchr(config + 1, 0xff, (size_t)(end - config - 1)) : NULL;
	if (!tokenizer)
		return 0;
	write_file("config.json", data, (size_t)(config - data));
	write_file("tokenizer.json", config + 1, (size_t)(tokenizer - config - 1));
	write_file("model.safetensors", tokenizer + 1, (size_t)(end - tokenizer - 1));
	for (int flags = 0; flags <= MODEL_NO_WEIGHTS; flags += MODEL_NO_WEIGHTS) {
		struct model *model;
		struct token_ids ids = { 0 };
		uint8_t digest[32];
		char error[256] = "";
		if (model_open(folder, flags, &model, error, sizeof(error)) < 0) {
			FUZZ_CHECK(error[0]);
			continue;
		}
		model_fingerprint(model, digest);
		(void)tokenize(model_tokenizer(model), text, sizeof(text) - 1, TOKENIZE_SPECIAL, &ids);
		for (uint32_t i = 0; i < ids.count; i++)
			FUZZ_CHECK(ids.v[i] < tokenizer_vocab_count(model_tokenizer(model)));
		free(ids.v);
		model_close(model);
	}
	return 0;
}
