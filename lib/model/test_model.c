/* Loading: what the files say, identities, and files that are cut short or lie. */
#include "model/test_util.h"

#include <errno.h>
#include <math.h>
#include <sys/stat.h>

#include "base/err.h"

static double number(const json_t *row, const char *key)
{
	return json_number_value(json_object_get(row, key));
}

static void check_config(const struct model *model, const json_t *row)
{
	const struct model_config *c = model_config(model);
	static const char *const archs[] = { "llama", "qwen2", "qwen3" };
	const char *what = json_string_value(json_object_get(row, "name"));
	const struct {
		const char *key;
		uint32_t value;
	} counts[] = {
		{ "emb", c->embedding },      { "heads", c->head_count },
		{ "kv", c->kv_head_count },   { "hd", c->head_dim },
		{ "ffn", c->feed_forward },   { "layers", c->layer_count },
		{ "vocab", c->vocab_count },  { "ctx", c->context_tokens },
		{ "hd", c->rope_dim },	      { "vocab", tokenizer_vocab_count(model_tokenizer(model)) },
	};
	for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
		if (counts[i].value != number(row, counts[i].key))
			fail_msg("%s: %s is %u", what, counts[i].key, counts[i].value);
	}
	assert_string_equal(archs[c->arch], json_string_value(json_object_get(row, "arch")));
	assert_int_equal(c->tied_embeddings, json_is_true(json_object_get(row, "tied")));
	assert_int_equal(c->qkv_bias, json_is_true(json_object_get(row, "bias")));
	assert_int_equal(c->qk_norm, json_is_true(json_object_get(row, "qknorm")));
	assert_true(c->rope_base == (float)number(row, "base"));
	assert_true(c->norm_epsilon == (float)number(row, "eps"));
	bool scaled = !json_is_null(json_object_get(row, "rope3")) ||
		      !json_is_null(json_object_get(row, "linear"));
	assert_int_equal(c->rope_divisors != NULL, scaled);
}

static void test_tiny(void **state)
{
	struct golden golden;
	golden_open(&golden, "tiny/models.jsonl");
	for (json_t *row; (row = golden_next(&golden)); json_decref(row)) {
		char path[128];
		snprintf(path, sizeof(path), "tiny/%s",
			 json_string_value(json_object_get(row, "file")));
		struct model *model = golden_model(path, 0);
		check_config(model, row);
		assert_int_equal(model_config(model)->rope_interleaved,
				 model_config(model)->arch == MODEL_LLAMA);
		model_close(model);
	}
	assert_int_equal(golden.row, 22);
}

static void test_folders(void **state)
{
	struct golden golden;
	golden_open(&golden, "hf/models.jsonl");
	for (json_t *row; (row = golden_next(&golden)); json_decref(row)) {
		struct token_ids ids = { 0 };
		struct model *model =
			golden_model(json_string_value(json_object_get(row, "folder")), 0);
		check_config(model, row);
		assert_false(model_config(model)->rope_interleaved);
		assert_int_equal(model_config(model)->bos_id, 317);
		assert_int_equal(model_config(model)->eos_ids[0], 319);
		size_t index;
		json_t *item;
		json_array_foreach(json_object_get(row, "tokenizer_cases"), index, item)
		{
			const json_t *text = json_object_get(item, "text");
			char name[64];
			snprintf(name, sizeof(name), "row %u case %zu", golden.row, index);
			ids.count = 0;
			assert_int_equal(tokenize(model_tokenizer(model), json_string_value(text),
						  json_string_length(text), 0, &ids),
					 0);
			assert_ids(name, &ids, json_object_get(item, "ids"));
		}
		free(ids.v);
		model_close(model);
	}
	assert_int_equal(golden.row, 2);
}

/* tokenizer.json of the Llama-2 kind, against the tokenizers package. */
static void test_folder_spm(void **state)
{
	struct golden golden;
	struct token_ids ids = { 0 };
	struct model *model = golden_model("hf-spm", MODEL_NO_WEIGHTS);
	const struct model_config *c = model_config(model);
	assert_true(c->add_bos);
	assert_int_equal(c->bos_id, 1);
	assert_int_equal(c->eos_count, 1);
	assert_int_equal(c->context_tokens, 256); /* the window */
	assert_true(c->rope_base == 1e6f);
	assert_string_equal(model_chat_template(model), "{{ bos_token }}{{ messages[0].content }}");
	golden_open(&golden, "hf-spm/cases.jsonl");
	for (json_t *row; (row = golden_next(&golden)); json_decref(row)) {
		const json_t *text = json_object_get(row, "text");
		char name[64];
		snprintf(name, sizeof(name), "row %u", golden.row);
		ids.count = 0;
		assert_int_equal(tokenize(model_tokenizer(model), json_string_value(text),
					  json_string_length(text), TOKENIZE_SPECIAL, &ids),
				 0);
		assert_ids(name, &ids, json_object_get(row, "ids"));
	}
	assert_int_equal(golden.row, 245);
	free(ids.v);
	model_close(model);
}

/* The divisors of Llama-3 scaling agree with the formula at both ends and in between. */
static void test_rope_llama3(void **state)
{
	struct model *model = golden_model("hf/hf-llama3-f32", 0);
	const struct model_config *c = model_config(model);
	assert_true(c->rope_divisors[0] == 1);
	assert_true(c->rope_divisors[c->rope_dim / 2 - 1] == 8);
	for (uint32_t i = 0; i < c->rope_dim / 2; i++) {
		double wave = 2 * M_PI * pow(500000, 2.0 * i / c->rope_dim);
		double smooth = (64 / wave - 1) / 3;
		double wanted = wave < 16 ? 1 : wave > 64 ? 8 : 1 / ((1 - smooth) / 8 + smooth);
		assert_true(fabs((double)c->rope_divisors[i] - wanted) < 1e-5);
	}
	model_close(model);
}

static void test_dequant(void **state)
{
	struct golden golden;
	golden_open(&golden, "dequant.jsonl");
	for (json_t *row; (row = golden_next(&golden)); json_decref(row)) {
		const char *hex = json_string_value(json_object_get(row, "hex"));
		const json_t *values = json_object_get(row, "values");
		uint32_t count = (uint32_t)json_array_size(values);
		size_t bytes = strlen(hex) / 2;
		uint8_t *data = malloc(2 * bytes);
		float *got = malloc(count * sizeof(*got));
		for (size_t i = 0; i < bytes; i++) {
			unsigned byte;
			assert_int_equal(sscanf(hex + 2 * i, "%2x", &byte), 1);
			data[i] = data[bytes + i] = (uint8_t)byte;
		}
		struct tensor tensor = { "t", (enum tensor_type)number(row, "type"), count, 2, data,
					 2 * bytes };
		assert_string_equal(tensor_type_name(tensor.type),
				    json_string_value(json_object_get(row, "name")));
		assert_int_equal(tensor_row_bytes(tensor.type, count), bytes);
		tensor_row_f32(&tensor, 1, got);
		for (uint32_t i = 0; i < count; i++) {
			float wanted = (float)json_number_value(json_array_get(values, i));
			/* One rounding may differ where a product and a sum are taken. */
			if (fabsf(got[i] - wanted) > 1e-6f * fabsf(wanted) + 1e-12f)
				fail_msg("%s element %u: %g, not %g", tensor_type_name(tensor.type), i,
					 got[i], wanted);
		}
		free(data);
		free(got);
	}
	assert_int_equal(golden.row, 11);
	assert_int_equal(tensor_row_bytes(TENSOR_Q4_0, 33), 0);
	assert_int_equal(tensor_row_bytes((enum tensor_type)99, 32), 0);
	assert_string_equal(tensor_type_name((enum tensor_type)5), "unknown");
}

static void read_file(const char *name, struct buf *out)
{
	char path[PATH_MAX], piece[4096];
	snprintf(path, sizeof(path), "%s/%s", TEST_GOLDEN, name);
	FILE *file = fopen(path, "rb");
	assert_non_null(file);
	buf_init(out, 0);
	for (size_t n; (n = fread(piece, 1, sizeof(piece), file)) > 0;)
		buf_append(out, piece, n);
	fclose(file);
}

static void write_file(const char *path, const void *data, size_t bytes)
{
	FILE *file = fopen(path, "wb");
	assert_non_null(file);
	assert_int_equal(fwrite(data, 1, bytes, file), bytes);
	assert_int_equal(fclose(file), 0);
}

static const char *scratch(const char *name)
{
	static char path[PATH_MAX];
	const char *folder = getenv("TMPDIR");
	snprintf(path, sizeof(path), "%s/baton-test-model-%d-%s", folder ? folder : "/tmp",
		 (int)getpid(), name);
	return path;
}

/* Opens @data as a file; the model is closed again. Return: model_open()'s. */
static int open_bytes(const void *data, size_t bytes, int flags, char error[256])
{
	const char *path = scratch("file.gguf");
	struct model *model;
	write_file(path, data, bytes);
	int result = model_open(path, flags, &model, error, 256);
	if (result >= 0)
		model_close(model);
	unlink(path);
	return result;
}

/* Cut anywhere, a file is refused with a sentence. */
static void test_truncated(void **state)
{
	struct buf file;
	char error[256];
	read_file("tiny/tiny-llama-f32.gguf", &file);
	assert_int_equal(open_bytes(file.data, file.bytes, 0, error), 0);
	for (size_t bytes = 0; bytes < file.bytes; bytes += bytes < 40000 ? 61 : 9973) {
		assert_int_equal(open_bytes(file.data, bytes, 0, error), BATON_EFORMAT);
		assert_true(strlen(error) > 10);
	}
	assert_int_equal(open_bytes(file.data, file.bytes - 1, 0, error), BATON_EFORMAT);
	buf_fini(&file);
}

/* Wild numbers in the header. */
static void test_wild(void **state)
{
	static const uint64_t wild[] = { 0, 1, 0xffffffff, 0x7fffffffffffffff, 0xffffffffffffffff,
					 0x1000000000000000 };
	struct buf file;
	char error[256];
	read_file("tiny/tiny-llama-f32.gguf", &file);
	for (size_t at = 8; at < 24; at += 8) {
		uint64_t original;
		memcpy(&original, file.data + at, 8);
		for (size_t i = 0; i < sizeof(wild) / sizeof(wild[0]); i++) {
			memcpy(file.data + at, &wild[i], 8);
			assert_int_equal(open_bytes(file.data, file.bytes, 0, error),
					 BATON_EFORMAT);
		}
		memcpy(file.data + at, &original, 8);
	}
	/* Each byte of the first kilobytes turned over: refused or loaded, never worse. */
	for (size_t at = 0; at < 1200; at += 3) {
		file.data[at] ^= (char)(1 << (at % 8));
		(void)open_bytes(file.data, file.bytes, 0, error);
		file.data[at] ^= (char)(1 << (at % 8));
	}
	file.data[4] = 9;
	assert_int_equal(open_bytes(file.data, file.bytes, 0, error), BATON_EFORMAT);
	assert_non_null(strstr(error, "version 9"));
	buf_fini(&file);
}

static void replace_all(struct buf *file, const char *from, const char *to)
{
	size_t bytes = strlen(from);
	assert_int_equal(bytes, strlen(to));
	for (size_t i = 0; i + bytes <= file->bytes; i++) {
		if (memcmp(file->data + i, from, bytes) == 0)
			memcpy(file->data + i, to, bytes);
	}
}

/* What is not supported is named. */
static void test_refusals(void **state)
{
	static const struct {
		const char *from, *to, *sentence;
	} cases[] = {
		{ "llama", "gemma", "general.architecture is \"gemma\"" },
		{ "smollm", "nosuch", "pre-tokenizer \"nosuch\"" },
		{ "gpt2", "bert", "tokenizer.ggml.model is \"bert\"" },
		{ "output_norm.weight", "output_nrom.weight", "output_norm.weight is missing" },
		{ "blk.1.ffn_up.weight", "blk.1.ffn_ex.weight", "blk.1.ffn_up.weight is missing" },
		{ "blk.1.", "blk.0.", "occurs twice" },
	};
	char error[256];
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct buf file;
		read_file("tiny/tiny-llama-f32.gguf", &file);
		replace_all(&file, cases[i].from, cases[i].to);
		assert_int_equal(open_bytes(file.data, file.bytes, 0, error), BATON_EFORMAT);
		if (!strstr(error, cases[i].sentence))
			fail_msg("wanted %s, got %s", cases[i].sentence, error);
		buf_fini(&file);
	}
	struct model *model;
	assert_int_equal(model_open("/nonexistent/x.gguf", 0, &model, error, sizeof(error)),
			 -ENOENT);
	assert_non_null(strstr(error, "/nonexistent/x.gguf"));
}

/* A folder's weights cut short or with offsets that lie. */
static void test_bad_folder(void **state)
{
	struct buf weights, config, tokenizer;
	char folder[PATH_MAX], path[PATH_MAX + 32], error[256];
	struct model *model;
	snprintf(folder, sizeof(folder), "%s", scratch("folder"));
	assert_int_equal(mkdir(folder, 0700), 0);
	read_file("hf/hf-qwen2-bf16-tied/model.safetensors", &weights);
	read_file("hf/hf-qwen2-bf16-tied/config.json", &config);
	read_file("hf/hf-qwen2-bf16-tied/tokenizer.json", &tokenizer);
	snprintf(path, sizeof(path), "%s/config.json", folder);
	write_file(path, config.data, config.bytes);
	snprintf(path, sizeof(path), "%s/tokenizer.json", folder);
	write_file(path, tokenizer.data, tokenizer.bytes);
	assert_int_equal(model_open(folder, 0, &model, error, sizeof(error)), BATON_EFORMAT);
	assert_non_null(strstr(error, "no .safetensors file"));
	snprintf(path, sizeof(path), "%s/model.safetensors", folder);
	for (size_t bytes = 0; bytes < weights.bytes; bytes += bytes < 200 ? 7 : 7919) {
		write_file(path, weights.data, bytes);
		assert_int_equal(model_open(folder, 0, &model, error, sizeof(error)), BATON_EFORMAT);
	}
	for (size_t at = 0; at < 2000; at += 5) {
		weights.data[at] ^= 4;
		write_file(path, weights.data, weights.bytes);
		weights.data[at] ^= 4;
		if (model_open(folder, 0, &model, error, sizeof(error)) >= 0)
			model_close(model);
	}
	write_file(path, weights.data, weights.bytes);
	assert_int_equal(model_open(folder, 0, &model, error, sizeof(error)), 0);
	model_close(model);
	unlink(path);
	snprintf(path, sizeof(path), "%s/config.json", folder);
	unlink(path);
	snprintf(path, sizeof(path), "%s/tokenizer.json", folder);
	unlink(path);
	rmdir(folder);
	buf_fini(&weights);
	buf_fini(&config);
	buf_fini(&tokenizer);
}

/* A model split over files that an index names is the model. */
static void test_sharded(void **state)
{
	struct buf source;
	uint8_t whole[32], split[32];
	char folder[PATH_MAX], path[PATH_MAX + 64], error[256];
	struct model *model = golden_model("hf/hf-llama3-f32", 0);
	model_fingerprint(model, whole);
	model_close(model);
	snprintf(folder, sizeof(folder), "%s", scratch("shards"));
	assert_int_equal(mkdir(folder, 0700), 0);
	static const char *const copied[] = { "config.json", "tokenizer.json" };
	for (size_t i = 0; i < 2; i++) {
		snprintf(path, sizeof(path), "hf/hf-llama3-f32/%s", copied[i]);
		read_file(path, &source);
		snprintf(path, sizeof(path), "%s/%s", folder, copied[i]);
		write_file(path, source.data, source.bytes);
		buf_fini(&source);
	}
	read_file("hf/hf-llama3-f32/model.safetensors", &source);
	uint64_t header_bytes;
	memcpy(&header_bytes, source.data, 8);
	json_t *header = json_loadb(source.data + 8, header_bytes, 0, NULL), *entry;
	json_t *map = json_object();
	const char *name;
	for (int shard = 0; shard < 2; shard++) {
		json_t *part = json_object();
		char file[64];
		struct buf out;
		int index = 0;
		snprintf(file, sizeof(file), "part-%d.safetensors", shard);
		json_object_foreach(header, name, entry)
		{
			if (strcmp(name, "__metadata__") == 0 || index++ % 2 != shard)
				continue;
			json_object_set(part, name, entry);
			json_object_set_new(map, name, json_string(file));
		}
		/* The data goes whole into both: each header names only its own. The header is
		 * not padded, so that the data may lie unaligned. */
		char *text = json_dumps(part, JSON_COMPACT);
		uint64_t bytes = strlen(text);
		buf_init(&out, 0);
		buf_append(&out, &bytes, 8);
		buf_append(&out, text, bytes);
		buf_append(&out, source.data + 8 + header_bytes, source.bytes - 8 - header_bytes);
		snprintf(path, sizeof(path), "%s/%s", folder, file);
		write_file(path, out.data, out.bytes);
		buf_fini(&out);
		free(text);
		json_decref(part);
	}
	json_t *index = json_pack("{s:o}", "weight_map", map);
	char *text = json_dumps(index, 0);
	snprintf(path, sizeof(path), "%s/model.safetensors.index.json", folder);
	write_file(path, text, strlen(text));
	free(text);
	json_decref(index);
	json_decref(header);
	buf_fini(&source);
	if (model_open(folder, 0, &model, error, sizeof(error)) < 0)
		fail_msg("%s", error);
	model_fingerprint(model, split);
	assert_memory_equal(whole, split, 32);
	model_close(model);
	static const char *const files[] = { "config.json", "tokenizer.json", "part-0.safetensors",
					     "part-1.safetensors", "model.safetensors.index.json" };
	for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
		snprintf(path, sizeof(path), "%s/%s", folder, files[i]);
		unlink(path);
	}
	rmdir(folder);
}

static void test_identity(void **state)
{
	uint8_t a[32], b[32], c[32], d[32];
	struct kv_shape shape;
	struct buf file;
	struct model *model = golden_model("tiny/tiny-llama-f32.gguf", 0), *other;
	model_fingerprint(model, a);
	model_kv_shape(model, 64, &shape);
	assert_int_equal(shape.group_count, 1);
	assert_int_equal(shape.block_tokens, 64);
	assert_int_equal(shape.groups[0].layer_count, 2);
	assert_int_equal(shape.groups[0].head_count, 2);
	assert_int_equal(shape.groups[0].head_dim, 16);
	assert_int_equal(shape.groups[0].element_bytes, 2);
	assert_int_equal(shape.groups[0].window, 0);
	model_kv_format(model, &shape, c);
	shape.block_tokens = 128;
	model_kv_format(model, &shape, d);
	assert_memory_not_equal(c, d, 32);
	model_close(model);
	/* The same bytes under another name are the same model; one weight less is another. */
	const char *path = scratch("same.gguf");
	char error[256];
	read_file("tiny/tiny-llama-f32.gguf", &file);
	write_file(path, file.data, file.bytes);
	assert_int_equal(model_open(path, 0, &other, error, sizeof(error)), 0);
	model_fingerprint(other, b);
	assert_memory_equal(a, b, 32);
	model_close(other);
	file.data[file.bytes - 1] ^= 1;
	write_file(path, file.data, file.bytes);
	assert_int_equal(model_open(path, 0, &other, error, sizeof(error)), 0);
	model_fingerprint(other, b);
	assert_memory_not_equal(a, b, 32);
	model_close(other);
	unlink(path);
	buf_fini(&file);
}

static void test_no_weights(void **state)
{
	struct model *model = golden_model("tiny/tiny-qwen2-f32.gguf", MODEL_NO_WEIGHTS);
	assert_null(model_tensor(model, "token_embd.weight"));
	assert_int_equal(model_config(model)->vocab_count, 320);
	assert_non_null(model_tokenizer(model));
	model_close(model);
	model_close(NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_tiny),	   cmocka_unit_test(test_folders),
		cmocka_unit_test(test_folder_spm), cmocka_unit_test(test_rope_llama3),
		cmocka_unit_test(test_dequant),	   cmocka_unit_test(test_truncated),
		cmocka_unit_test(test_wild),	   cmocka_unit_test(test_refusals),
		cmocka_unit_test(test_bad_folder), cmocka_unit_test(test_sharded),
		cmocka_unit_test(test_identity),   cmocka_unit_test(test_no_weights),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
