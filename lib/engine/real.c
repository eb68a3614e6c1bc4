#include "engine/real.h"

#include <stdint.h>
#include <string.h>

static double pow2(int n) /* -1022..1023 */
{
	uint64_t bits = (uint64_t)(n + 1023) << 52;
	double value;
	memcpy(&value, &bits, sizeof value);
	return value;
}

static int round_even(double x) /* |x| < 2^31 */
{
	const double magic = 0x1.8p52;
	volatile double shifted = x + magic; /* volatile: the addition must not be folded away */
	return (int)(shifted - magic);
}

double real_exp(double x)
{
	x = x < -700 ? -700 : x > 700 ? 700 : x;
	int n = round_even(x * 1.4426950408889634074);
	double r = x - n * 6.93147180369123816490e-01;
	r = r - n * 1.90821492927058770002e-10;
	double term = 1, sum = 1;
	for (int i = 1; i <= 14; i++) {
		term = term * r / i;
		sum = sum + term;
	}
	return sum * pow2(n);
}

double real_log(double x)
{
	uint64_t bits;
	memcpy(&bits, &x, sizeof bits);
	int n = (int)(bits >> 52 & 2047) - 1023;
	bits = (bits & UINT64_C(0xfffffffffffff)) | UINT64_C(1023) << 52;
	double m;
	memcpy(&m, &bits, sizeof m);
	if (m > 1.41421356237309504880) {
		m = m * 0.5;
		n++;
	}
	double s = (m - 1) / (m + 1), square = s * s, sum = 0;
	for (int i = 23; i >= 1; i -= 2)
		sum = sum * square + 1.0 / i;
	return n * 1.90821492927058770002e-10 + 2 * s * sum + n * 6.93147180369123816490e-01;
}

void real_sincos(double x, double *ret_sin, double *ret_cos)
{
	int n = round_even(x * 0.63661977236758134308);
	/* pi/2 in three parts of 33 bits each, so that n times a part is exact (n < 2^20). */
	double r = x - n * 1.57079632673412561417e+00;
	r = r - n * 6.07710050630396597660e-11;
	r = r - n * 2.02226624879595063154e-21;
	double square = r * r, s = 0, c = 0;
	for (int i = 19; i >= 3; i -= 2)
		s = (1 + s) * (-square / (double)(i * (i - 1)));
	for (int i = 18; i >= 2; i -= 2)
		c = (1 + c) * (-square / (double)(i * (i - 1)));
	s = r + r * s;
	c = 1 + c;
	switch (n & 3) {
	case 0:
		*ret_sin = s;
		*ret_cos = c;
		break;
	case 1:
		*ret_sin = c;
		*ret_cos = -s;
		break;
	case 2:
		*ret_sin = -s;
		*ret_cos = -c;
		break;
	default:
		*ret_sin = -c;
		*ret_cos = s;
	}
}
