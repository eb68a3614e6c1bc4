/* f16 <-> f32 in plain C, the same bits as F16C (round to nearest even). */
#ifndef BATON_ENGINE_HALF_H
#define BATON_ENGINE_HALF_H

#include <stdint.h>
#include <string.h>

static inline float half_to_f32(uint16_t half)
{
	uint32_t sign = (uint32_t)(half & 0x8000) << 16, exponent = half >> 10 & 31;
	uint32_t mantissa = half & 1023, bits;
	if (exponent == 31) {
		bits = sign | 0x7f800000u | mantissa << 13 | (mantissa ? 0x400000u : 0);
	} else if (exponent) {
		bits = sign | (exponent + 112) << 23 | mantissa << 13;
	} else { /* subnormal: mantissa * 2^-24, exact in f32 */
		float value = (float)mantissa * 0x1p-24f;
		memcpy(&bits, &value, sizeof bits);
		bits |= sign;
	}
	float value;
	memcpy(&value, &bits, sizeof value);
	return value;
}

static inline uint16_t half_from_f32(float value)
{
	uint32_t bits;
	memcpy(&bits, &value, sizeof bits);
	uint32_t sign = bits >> 16 & 0x8000, rest = bits & 0x7fffffffu;
	if (rest > 0x7f800000u)
		return (uint16_t)(sign | 0x7e00 | (rest >> 13 & 1023));
	if (rest >= 0x477ff000u) /* 65520 and more round to infinity */
		return (uint16_t)(sign | 0x7c00);
	if (rest >= 0x38800000u) { /* normal in f16 */
		uint32_t rounded = rest + 0xfff + (rest >> 13 & 1);
		return (uint16_t)(sign | ((rounded - 0x38000000u) >> 13));
	}
	if (rest < 0x33000000u) /* below half of the smallest subnormal */
		return (uint16_t)sign;
	uint32_t shift = 126 - (rest >> 23), mantissa = (rest & 0x7fffff) | 0x800000;
	uint32_t low = mantissa & ((UINT32_C(1) << shift) - 1), half = UINT32_C(1) << (shift - 1);
	uint32_t result = mantissa >> shift;
	result += low > half || (low == half && (result & 1));
	return (uint16_t)(sign | result);
}

#endif
