/*
 * Rows of stored weights to f32. The formats are ggml's: blocks of 32 elements with one f16
 * scale (Q4_0, Q5_0, Q8_0) or a scale and a minimum (Q4_1, Q5_1), and "K" super-blocks of 256
 * with small integer scales per 16 or 32 elements under f16 ones.
 */
#include <stdint.h>
#include <string.h>

#include "base/check.h"
#include "model/model.h"

struct tensor_format {
	const char *name;
	uint16_t block_elements, block_bytes;
	void (*decode)(const uint8_t *block, float *ret); /* one block */
};

static uint16_t load16(const uint8_t *p)
{
	return (uint16_t)(p[0] | p[1] << 8);
}

static uint32_t load32(const uint8_t *p)
{
	return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static float float_from_bits(uint32_t bits)
{
	float value;
	memcpy(&value, &bits, sizeof(value));
	return value;
}

static float half(const uint8_t *p)
{
	uint32_t h = load16(p), sign = (h & 0x8000) << 16, magnitude = h & 0x7fff;
	if (magnitude >= 0x7c00) /* infinity and NaN keep their payload */
		return float_from_bits(sign | 0x7f800000 | (magnitude & 0x3ff) << 13);
	if (magnitude >= 0x400)
		return float_from_bits(sign | ((magnitude << 13) + 0x38000000));
	float subnormal = (float)magnitude * 0x1p-24f;
	return sign ? -subnormal : subnormal;
}

static void decode_f32(const uint8_t *block, float *ret)
{
	*ret = float_from_bits(load32(block));
}

static void decode_f16(const uint8_t *block, float *ret)
{
	*ret = half(block);
}

static void decode_bf16(const uint8_t *block, float *ret)
{
	*ret = float_from_bits((uint32_t)load16(block) << 16);
}

/* f16 scale; 16 bytes: low nibbles are elements 0-15, high ones 16-31. */
static void decode_q4_0(const uint8_t *block, float *ret)
{
	float d = half(block);
	for (int i = 0; i < 16; i++) {
		ret[i] = d * (float)((block[2 + i] & 15) - 8);
		ret[i + 16] = d * (float)((block[2 + i] >> 4) - 8);
	}
}

static void decode_q4_1(const uint8_t *block, float *ret)
{
	float d = half(block), m = half(block + 2);
	for (int i = 0; i < 16; i++) {
		ret[i] = d * (float)(block[4 + i] & 15) + m;
		ret[i + 16] = d * (float)(block[4 + i] >> 4) + m;
	}
}

/* As Q4_0, with the fifth bits of the 32 elements in one word. */
static void decode_q5_0(const uint8_t *block, float *ret)
{
	float d = half(block);
	uint32_t high = load32(block + 2);
	for (int i = 0; i < 16; i++) {
		int low_q = (block[6 + i] & 15) | (int)(high >> i & 1) << 4;
		int high_q = (block[6 + i] >> 4) | (int)(high >> (i + 16) & 1) << 4;
		ret[i] = d * (float)(low_q - 16);
		ret[i + 16] = d * (float)(high_q - 16);
	}
}

static void decode_q5_1(const uint8_t *block, float *ret)
{
	float d = half(block), m = half(block + 2);
	uint32_t high = load32(block + 4);
	for (int i = 0; i < 16; i++) {
		int low_q = (block[8 + i] & 15) | (int)(high >> i & 1) << 4;
		int high_q = (block[8 + i] >> 4) | (int)(high >> (i + 16) & 1) << 4;
		ret[i] = d * (float)low_q + m;
		ret[i + 16] = d * (float)high_q + m;
	}
}

static void decode_q8_0(const uint8_t *block, float *ret)
{
	float d = half(block);
	for (int i = 0; i < 32; i++)
		ret[i] = d * (float)(int8_t)block[2 + i];
}

/* The eight 6-bit (scale, minimum) pairs that Q4_K and Q5_K pack into 12 bytes: pairs 0-3 whole
 * in bytes 0-7, pairs 4-7 as nibbles in bytes 8-11 with their upper bits on top of bytes 0-7. */
static void k_scale(const uint8_t *packed, int index, float *ret_scale, float *ret_minimum)
{
	if (index < 4) {
		*ret_scale = (float)(packed[index] & 63);
		*ret_minimum = (float)(packed[index + 4] & 63);
		return;
	}
	*ret_scale = (float)((packed[index + 4] & 15) | (packed[index - 4] >> 6) << 4);
	*ret_minimum = (float)((packed[index + 4] >> 4) | (packed[index] >> 6) << 4);
}

/* d, dmin, scales[12], 128 bytes: each 32 bytes hold 64 elements, low nibbles first. */
static void decode_q4_k(const uint8_t *block, float *ret)
{
	float d = half(block), dmin = half(block + 2);
	const uint8_t *q = block + 16;
	for (int group = 0; group < 8; group++) {
		float scale, minimum;
		k_scale(block + 4, group, &scale, &minimum);
		scale *= d;
		minimum *= dmin;
		for (int i = 0; i < 32; i++) {
			int value = group & 1 ? q[group / 2 * 32 + i] >> 4 : q[group / 2 * 32 + i] & 15;
			ret[group * 32 + i] = scale * (float)value - minimum;
		}
	}
}

/* As Q4_K, with 32 bytes of fifth bits in front: bit g of byte i belongs to group g. */
static void decode_q5_k(const uint8_t *block, float *ret)
{
	float d = half(block), dmin = half(block + 2);
	const uint8_t *high = block + 16, *q = block + 48;
	for (int group = 0; group < 8; group++) {
		float scale, minimum;
		k_scale(block + 4, group, &scale, &minimum);
		scale *= d;
		minimum *= dmin;
		for (int i = 0; i < 32; i++) {
			int value = group & 1 ? q[group / 2 * 32 + i] >> 4 : q[group / 2 * 32 + i] & 15;
			value |= (high[i] >> group & 1) << 4;
			ret[group * 32 + i] = scale * (float)value - minimum;
		}
	}
}

/* ql[128], qh[64], int8 scales[16], d. Each half of 128 elements takes 64 bytes of ql and 32 of
 * qh; within it quarter k (32 elements) has its low nibbles in ql[(k & 1) * 32 ..], low or high
 * nibble by k >> 1, and its two upper bits at 2k of qh. One scale for 16 elements. */
static void decode_q6_k(const uint8_t *block, float *ret)
{
	const uint8_t *low = block, *high = block + 128;
	const int8_t *scales = (const int8_t *)(block + 192);
	float d = half(block + 208);
	for (int part = 0; part < 2; part++, low += 64, high += 32) {
		for (int k = 0; k < 4; k++) {
			for (int i = 0; i < 32; i++) {
				uint8_t byte = low[(k & 1) * 32 + i];
				int q = (k >> 1 ? byte >> 4 : byte & 15) |
					(high[i] >> (2 * k) & 3) << 4;
				int element = part * 128 + k * 32 + i;
				ret[element] = d * (float)scales[element / 16] * (float)(q - 32);
			}
		}
	}
}

static const struct tensor_format tensor_formats[] = {
	[TENSOR_F32] = { "F32", 1, 4, decode_f32 },
	[TENSOR_F16] = { "F16", 1, 2, decode_f16 },
	[TENSOR_Q4_0] = { "Q4_0", 32, 18, decode_q4_0 },
	[TENSOR_Q4_1] = { "Q4_1", 32, 20, decode_q4_1 },
	[TENSOR_Q5_0] = { "Q5_0", 32, 22, decode_q5_0 },
	[TENSOR_Q5_1] = { "Q5_1", 32, 24, decode_q5_1 },
	[TENSOR_Q8_0] = { "Q8_0", 32, 34, decode_q8_0 },
	[TENSOR_Q4_K] = { "Q4_K", 256, 144, decode_q4_k },
	[TENSOR_Q5_K] = { "Q5_K", 256, 176, decode_q5_k },
	[TENSOR_Q6_K] = { "Q6_K", 256, 210, decode_q6_k },
	[TENSOR_BF16] = { "BF16", 1, 2, decode_bf16 },
};

static const struct tensor_format *tensor_format(enum tensor_type type)
{
	if ((size_t)type >= ARRAY_COUNT(tensor_formats) || !tensor_formats[type].name)
		return NULL;
	return &tensor_formats[type];
}

const char *tensor_type_name(enum tensor_type type)
{
	const struct tensor_format *format = tensor_format(type);
	return format ? format->name : "unknown";
}

size_t tensor_row_bytes(enum tensor_type type, uint32_t column_count)
{
	const struct tensor_format *format = tensor_format(type);
	if (!format || column_count % format->block_elements != 0)
		return 0;
	return (size_t)(column_count / format->block_elements) * format->block_bytes;
}

void tensor_row_f32(const struct tensor *tensor, uint32_t row, float ret_values[])
{
	const struct tensor_format *format = tensor_format(tensor->type);
	CHECK(format);
	CHECK(row < tensor->row_count);
	const uint8_t *block = (const uint8_t *)tensor->data +
			       row * tensor_row_bytes(tensor->type, tensor->column_count);
	uint32_t block_count = tensor->column_count / format->block_elements;
	for (uint32_t i = 0; i < block_count; i++) {
		format->decode(block, ret_values);
		block += format->block_bytes;
		ret_values += format->block_elements;
	}
}
