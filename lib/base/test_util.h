/* For unit tests: cmocka with what it needs, and a test that something dies of a CHECK. */
#ifndef BATON_BASE_TEST_UTIL_H
#define BATON_BASE_TEST_UTIL_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

/* The child's last words go nowhere: they are expected. */
#define assert_dies(statement)                                                                   \
	do {                                                                                     \
		pid_t test_child = fork();                                                       \
		assert_true(test_child >= 0);                                                    \
		if (test_child == 0) {                                                           \
			if (!freopen("/dev/null", "w", stderr))                                  \
				_exit(2);                                                        \
			signal(SIGABRT, SIG_DFL);                                                \
			statement;                                                               \
			_exit(0);                                                                \
		}                                                                                \
		int test_status;                                                                 \
		assert_int_equal(waitpid(test_child, &test_status, 0), test_child);              \
		assert_true(WIFSIGNALED(test_status) && WTERMSIG(test_status) == SIGABRT);       \
	} while (0)

#endif
