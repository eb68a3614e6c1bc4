#include "base/test_util.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/settings.h"

struct config {
	bool stream, quiet;
	uint64_t port, room, lease, policy;
	double share;
	const char *model, *key, *nodes;
};

static const char *const policies[] = { "round-robin", "least-loaded", NULL };

#define ROW(field) .offset = offsetof(struct config, field)
static const struct setting rows[] = {
	{ "stream", SETTING_BOOL, "", "true", 0, 0, "Stream.", ROW(stream) },
	{ "quiet", SETTING_BOOL, "", "false", 0, 0, "Say less.", ROW(quiet) },
	{ "port", SETTING_COUNT, "", "8000", 0, 65535, "Port.", ROW(port) },
	{ "kv-room", SETTING_BYTES, "bytes", "64M", 4096, 0, "Memory.", ROW(room) },
	{ "lease", SETTING_DURATION, "ms", "3000", 100, 600000, "Lease.", ROW(lease), .reloadable = true },
	{ "policy", SETTING_CHOICE, "", "least-loaded", 0, 0, "Policy.", ROW(policy), policies },
	{ "share", SETTING_REAL, "", "0.9", 0, 1, "Share.", ROW(share) },
	{ "model", SETTING_TEXT, "", "", 0, 0, "Model file.", ROW(model) },
	{ "api-key", SETTING_TEXT, "", "", 0, 0, "Key.", ROW(key), .secret = true },
	{ "peer-node", SETTING_LIST, "", "", 0, 0, "Peers.", ROW(nodes) },
};
static const struct settings settings = { "test", "a daemon for this test.", "model", rows,
					  ARRAY_COUNT(rows) };

static char path[] = "/tmp/baton-test-settings-XXXXXX";

/* Standard output and error of the last load, one after the other. */
static char said[16384];

static int load(struct config *config, const char *file, const char **words)
{
	const char *argv[32] = { "baton-test" };
	char log_path[] = "/tmp/baton-test-said-XXXXXX";
	int argc = 1, log = mkstemp(log_path), out = dup(1), err = dup(2);

	assert_true(log >= 0);
	unlink(log_path);
	if (file) {
		int fd = open(path, O_WRONLY | O_TRUNC);
		assert_int_equal(write(fd, file, strlen(file)), strlen(file));
		close(fd);
		argv[argc++] = "--config";
		argv[argc++] = path;
	}
	while (words && *words)
		argv[argc++] = *words++;
	fflush(stdout);
	fflush(stderr);
	dup2(log, 1);
	dup2(log, 2);
	int result = settings_load(&settings, argc, (char **)argv, config);
	fflush(stdout);
	fflush(stderr);
	dup2(out, 1);
	dup2(err, 2);
	ssize_t bytes = pread(log, said, sizeof said - 1, 0);
	said[bytes > 0 ? bytes : 0] = 0;
	close(log);
	close(out);
	close(err);
	return result;
}

#define WORDS(...) ((const char *[]){ __VA_ARGS__, NULL })

static void test_initial(void **state)
{
	struct config config;

	assert_int_equal(load(&config, NULL, NULL), 0);
	assert_true(config.stream);
	assert_false(config.quiet);
	assert_int_equal(config.port, 8000);
	assert_int_equal(config.room, 64 << 20);
	assert_true(config.lease == 3000 * UINT64_C(1000000));
	assert_int_equal(config.policy, 1);
	assert_true(config.share == 0.9);
	assert_string_equal(config.model, "");
	assert_string_equal(config.nodes, "");
	settings_free(&settings, &config);
	assert_null(config.model);
}

static void test_order(void **state)
{
	struct config config;
	const char *file = "# a comment\n\nport = 1\r\nshare = 0.1 # behind\n  model=\"a # \\\"b\\\\ \"\n"
			   "peer-node = a\npeer-node = b\nkv-room = 1G\n";

	assert_int_equal(load(&config, file, NULL), 0);
	assert_int_equal(config.port, 1);
	assert_true(config.share == 0.1);
	assert_string_equal(config.model, "a # \"b\\ ");
	assert_string_equal(config.nodes, "a\nb");
	settings_free(&settings, &config);

	setenv("BATON_TEST_PORT", "3", 1);
	setenv("BATON_PORT", "2", 1);
	setenv("BATON_KV_ROOM", "8K", 1);
	assert_int_equal(load(&config, file, NULL), 0);
	assert_int_equal(config.port, 3);
	assert_int_equal(config.room, 8192);
	settings_free(&settings, &config);

	assert_int_equal(load(&config, file,
			      WORDS("file.gguf", "--port=4", "--no-stream", "--quiet", "--peer-node", "c",
				    "--peer_node=d", "--lease", "1.5s")),
			 0);
	assert_int_equal(config.port, 4);
	assert_false(config.stream);
	assert_true(config.quiet);
	assert_string_equal(config.model, "file.gguf");
	assert_string_equal(config.nodes, "c\nd");
	assert_true(config.lease == UINT64_C(1500000000));
	settings_free(&settings, &config);
	unsetenv("BATON_TEST_PORT");
	unsetenv("BATON_PORT");
	unsetenv("BATON_KV_ROOM");
}

static void refused(const char *file, const char **words, const char *expected)
{
	struct config config;

	int result = load(&config, file, words);
	if (result != -EINVAL || strcmp(said, expected))
		print_error("got %d: %s", result, said);
	assert_int_equal(result, -EINVAL);
	assert_string_equal(said, expected);
}

static void test_refusals(void **state)
{
	char line[256];

	refused(NULL, WORDS("--port", "x"), "baton-test: --port: 'x' is not valid; give 0 to 65535\n");
	refused(NULL, WORDS("--port=65536"), "baton-test: --port: '65536' is out of range; give 0 to 65535\n");
	refused(NULL, WORDS("--port=-1"), "baton-test: --port: '-1' is not valid; give 0 to 65535\n");
	refused(NULL, WORDS("--port=1.5"), "baton-test: --port: '1.5' is not valid; give 0 to 65535\n");
	refused(NULL, WORDS("--port=99999999999999999999"),
		"baton-test: --port: '99999999999999999999' is out of range; give 0 to 65535\n");
	refused(NULL, WORDS("--port"), "baton-test: --port: a value must follow\n");
	refused(NULL, WORDS("--prot", "1"), "baton-test: flags: unknown option --prot; did you mean --port?\n");
	refused(NULL, WORDS("--xyzzy"),
		"baton-test: flags: unknown option --xyzzy; --help lists what there is\n");
	refused(NULL, WORDS("--no-port"),
		"baton-test: flags: unknown option --no-port; did you mean --port?\n");
	refused(NULL, WORDS("a", "b"), "baton-test: b: is not an option; --help lists what there is\n");
	refused(NULL, WORDS("-x"), "baton-test: -x: is not an option; --help lists what there is\n");
	refused(NULL, WORDS("--lease", "50"),
		"baton-test: --lease: '50' is out of range; give 100 to 600000 ms, as 20ms, 3s or 5m "
		"(without a unit: ms)\n");
	refused(NULL, WORDS("--lease", "3days"),
		"baton-test: --lease: '3days' is not valid; give 100 to 600000 ms, as 20ms, 3s or 5m "
		"(without a unit: ms)\n");
	refused(NULL, WORDS("--kv-room", "9999999999T"),
		"baton-test: --kv-room: '9999999999T' is out of range; give 4096 bytes or more, as 4096, 64K, "
		"16M or 2G\n");
	refused(NULL, WORDS("--policy", "best"),
		"baton-test: --policy: 'best' is not valid; give one of: round-robin, least-loaded\n");
	refused(NULL, WORDS("--share", "nan"), "baton-test: --share: 'nan' is not valid; give 0 to 1\n");
	refused(NULL, WORDS("--quiet=maybe"),
		"baton-test: --quiet: 'maybe' is not valid; give true or false\n");
	refused(NULL, WORDS("--no-quiet=true"), "baton-test: --no-quiet: takes no value\n");
	refused(NULL, WORDS("--config", "/nonexistent/x"),
		"baton-test: /nonexistent/x: No such file or directory\n");

	snprintf(line, sizeof line, "baton-test: %s line 2: unknown setting prot; did you mean port?\n", path);
	refused("\nprot = 1\n", NULL, line);
	snprintf(line, sizeof line, "baton-test: %s line 1: a line must read `name = value`\n", path);
	refused("port 1\n", NULL, line);
	snprintf(line, sizeof line,
		 "baton-test: %s line 1: the closing \" is missing or something follows it\n", path);
	refused("model = \"x\n", NULL, line);

	setenv("BATON_SHARE", "2", 1);
	refused(NULL, NULL, "baton-test: BATON_SHARE: '2' is out of range; give 0 to 1\n");
	unsetenv("BATON_SHARE");
}

/* What --print-config prints is what --config reads. */
static void test_print_config(void **state)
{
	struct config first, second;
	char copy[sizeof said];

	const char **words = WORDS("--model", " x#\n\"", "--share=0.1", "--kv-room=1536K", "--lease=2m", "--peer-node",
			     "p 1", "--peer-node", "q", "--no-stream", "--policy", "round-robin");
	assert_int_equal(load(&first, NULL, words), 0);
	const char *all[32];
	int count = 0;
	while (words[count]) {
		all[count] = words[count];
		count++;
	}
	all[count++] = "--print-config";
	all[count] = NULL;
	assert_int_equal(load(&second, NULL, all), 1);
	strcpy(copy, said);
	assert_non_null(strstr(copy, "lease = 120000ms\n"));
	assert_non_null(strstr(copy, "kv-room = 1536K\n"));
	assert_non_null(strstr(copy, "share = 0.1\n"));
	assert_int_equal(load(&second, copy, NULL), 0);
	assert_string_equal(first.model, second.model);
	assert_string_equal(second.nodes, "p 1\nq");
	assert_true(first.lease == second.lease && first.room == second.room);
	assert_true(first.share == second.share && first.policy == second.policy);
	assert_false(second.stream);
	settings_free(&settings, &first);
	settings_free(&settings, &second);

	assert_int_equal(load(&first, NULL, WORDS("--api-key", "hush", "--print-config")), 1);
	assert_non_null(strstr(said, "api-key = ***\n"));
	assert_null(strstr(said, "hush"));
}

static void test_printing(void **state)
{
	struct config config;
	char copy[sizeof said];

	/* Help comes out even where the environment is wrong. */
	setenv("BATON_PORT", "x", 1);
	assert_int_equal(load(&config, NULL, WORDS("--help")), 1);
	unsetenv("BATON_PORT");
	for (size_t i = 0; i < ARRAY_COUNT(rows); i++) {
		assert_non_null(strstr(said, rows[i].name));
		assert_non_null(strstr(said, rows[i].help));
	}
	assert_non_null(strstr(said, "--no-stream"));
	assert_int_equal(load(&config, NULL, WORDS("--version")), 1);
	assert_non_null(strstr(said, baton_version));
	assert_int_equal(load(&config, NULL, WORDS("--print-docs")), 1);
	assert_non_null(strstr(said, "| `lease` | `3000` |"));

	/* The sample is a valid file, also with every setting uncommented. */
	assert_int_equal(load(&config, NULL, WORDS("--print-sample")), 1);
	strcpy(copy, said);
	assert_int_equal(load(&config, copy, NULL), 0);
	settings_free(&settings, &config);
	for (char *at = copy; (at = strstr(at, "\n#")); at++)
		if (at[2] != ' ')
			at[1] = ' ';
	assert_int_equal(load(&config, copy, NULL), 0);
	assert_int_equal(config.port, 8000);
	settings_free(&settings, &config);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_initial),	     cmocka_unit_test(test_order),
		cmocka_unit_test(test_refusals),     cmocka_unit_test(test_print_config),
		cmocka_unit_test(test_printing),
	};
	clearenv(); /* whoever runs this may have settings of their own there */
	int fd = mkstemp(path);
	if (fd < 0)
		return 1;
	close(fd);
	int result = cmocka_run_group_tests(tests, NULL, NULL);
	unlink(path);
	return result;
}
