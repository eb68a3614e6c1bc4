/* Own exp, log, sin and cos in f64, from +, -, * and / only: the same bits with every compiler
 * and libm. Relative error about 1e-15; for tables and sampling, not for inner loops. */
#ifndef BATON_ENGINE_REAL_H
#define BATON_ENGINE_REAL_H

double real_exp(double x); /* clamped to [-700, 700] */
double real_log(double x); /* x > 0 */
/* |x| up to about 2^30. */
void real_sincos(double x, double *ret_sin, double *ret_cos);

#endif
