/*
 * `baton bench xfer`: bandwidth and processor time of the data plane, by slice size, beside two
 * peers that move the same bytes: memcpy() in one thread, and a bare TCP socket between two
 * processes. All of them move cold memory: they walk slabs larger than the caches. The receiving
 * side is a forked process. For every size the methods take turns, round after round, so that a
 * noisy machine disturbs all of them alike. The table shows medians and the least processor time of a
 * round, which a neighbour disturbs less.
 */
#include "bench/bench.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/hash.h"
#include "base/rand.h"
#include "xfer/xfer.h"

#define MIB (1u << 20)
#define ROUNDS_MAX 64
#define SIZES_MAX 16
#define SLICES_PER_ROUND_MAX 32768u
#define SOCKET_CHUNK_BYTES (256u << 10)

enum method { METHOD_MEMCPY, METHOD_SOCKET, METHOD_SHM, METHOD_SHM_SUMS, METHOD_TCP, METHOD_TCP_SUMS, METHOD_COUNT };
static const char *const method_names[METHOD_COUNT] = { "memcpy", "socket", "shm", "shm+sums",
							"tcp", "tcp+sums" };

struct options {
	uint64_t slab_bytes, round_bytes;
	uint32_t depth, rounds, streams;
	uint32_t sizes[SIZES_MAX], size_count;
	bool methods[METHOD_COUNT];
	const char *json;
};

struct sample {
	double gb_s, cpu_s_per_gb, cpu_s_per_gb_min;
};

/* What the receiving process is asked and answers. */
struct order {
	enum method method;
	uint32_t bytes, count;
};
struct answer {
	uint8_t address[XFER_ADDRESS_BYTES_MAX], ticket[XFER_TICKET_BYTES_MAX];
	size_t address_bytes, ticket_bytes;
	uint64_t cpu_ns;
};

struct side { /* of either process */
	struct xfer_slab slab;
	struct xfer *xfers[XFER_SIM + 1]; /* opened when first needed */
	int wake;
	struct options options;
};

static void die(const char *what, int error)
{
	fprintf(stderr, "bench xfer: %s: %s\n", what, err_text(error));
	exit(1);
}

static uint64_t process_cpu_ns(void)
{
	struct rusage usage;
	CHECK(!getrusage(RUSAGE_SELF, &usage));
	return (usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * NS_PER_S +
	       (usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * NS_PER_US;
}

static void read_whole(int fd, void *data, size_t bytes)
{
	for (size_t at = 0; at < bytes;) {
		ssize_t count = read(fd, (char *)data + at, bytes - at);
		if (count <= 0)
			exit(1); /* the other process said why */
		at += count;
	}
}

static void write_whole(int fd, const void *data, size_t bytes)
{
	for (size_t at = 0; at < bytes;) {
		ssize_t count = write(fd, (const char *)data + at, bytes - at);
		if (count < 0)
			die("write", -errno);
		at += count;
	}
}

/* ---- either side ---- */

static void side_notify(void *context)
{
	const uint64_t one = 1;
	struct side *side = context;
	CHECK(write(side->wake, &one, sizeof one) == sizeof one);
}

static void side_wait(struct side *side)
{
	struct pollfd fd = { side->wake, POLLIN, 0 };
	uint64_t count;
	(void)poll(&fd, 1, 1000);
	(void)!read(side->wake, &count, sizeof count);
}

static void side_init(struct side *side, const struct options *options)
{
	*side = (struct side){ .options = *options };
	int error = xfer_slab_map(options->slab_bytes, &side->slab);
	if (error)
		die("slab", error);
	side->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	uint64_t seed = 1, *words = side->slab.base;
	for (uint64_t i = 0; i < options->slab_bytes / 8; i++)
		words[i] = rand_next(&seed);
}

static bool is_shm(enum method method)
{
	return method == METHOD_SHM || method == METHOD_SHM_SUMS;
}

static struct xfer *side_xfer(struct side *side, enum method method)
{
	enum xfer_transport transport = is_shm(method) ? XFER_SHM : XFER_TCP;
	char error[256];

	if (side->xfers[transport])
		return side->xfers[transport];
	struct xfer_config config = { .transport = transport, .host = "127.0.0.1", .slab = side->slab,
				      .expects_max = 16, .streams_per_peer = side->options.streams,
				      .notify = side_notify, .notify_context = side };
	int status = xfer_open(&config, &side->xfers[transport], error, sizeof error);
	if (status) {
		fprintf(stderr, "bench xfer: %s\n", error);
		exit(1);
	}
	return side->xfers[transport];
}

static void side_fini(struct side *side)
{
	for (size_t i = 0; i < ARRAY_COUNT(side->xfers); i++)
		xfer_close(side->xfers[i]);
	xfer_slab_unmap(&side->slab);
	close(side->wake);
}

static uint64_t place(const struct side *side, uint32_t index, uint32_t bytes)
{
	return (uint64_t)index * bytes % side->options.slab_bytes;
}

/* ---- the receiving process ---- */

static int socket_listen(uint16_t *ret_port)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t bytes = sizeof address;
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof address) || listen(fd, 4) ||
	    getsockname(fd, (struct sockaddr *)&address, &bytes))
		die("socket", -errno);
	*ret_port = ntohs(address.sin_port);
	return fd;
}

static void receive_socket(struct side *side, const struct order *order, int fd)
{
	for (uint32_t i = 0; i < order->count; i++) {
		char *target = (char *)side->slab.base + place(side, i, order->bytes);
		for (uint32_t at = 0; at < order->bytes;) {
			ssize_t count = recv(fd, target + at, MIN(order->bytes - at, SOCKET_CHUNK_BYTES), 0);
			if (count <= 0)
				die("recv", count ? -errno : -ECONNRESET);
			at += count;
		}
	}
}

static void receive_xfer(struct side *side, const struct order *order, struct answer *answer, int out)
{
	struct xfer *xfer = side_xfer(side, order->method);
	struct xfer_range *ranges = calloc(order->count, sizeof *ranges);
	struct xfer_event event = { 0 };
	bool landed = false;
	xfer_expect_id id;

	for (uint32_t i = 0; i < order->count; i++)
		ranges[i] = (struct xfer_range){ place(side, i, order->bytes), order->bytes };
	answer->address_bytes = xfer_address(xfer, answer->address);
	int error = xfer_expect(xfer, ranges, order->count, 1, &id, answer->ticket, &answer->ticket_bytes);
	free(ranges);
	if (error)
		die("expect", error);
	write_whole(out, answer, sizeof *answer);
	uint64_t cpu_ns = process_cpu_ns();
	while (!landed) {
		side_wait(side);
		while (xfer_poll(xfer, &event)) {
			landed |= event.kind == XFER_LANDED_ALL;
			if (event.kind != XFER_LANDED && !landed)
				die("a slice did not land", event.status);
		}
	}
	answer->cpu_ns = process_cpu_ns() - cpu_ns;
}

static void receiver_run(const struct options *options, int in, int out, int listener)
{
	struct side side;
	struct order order;
	int fd = -1;

	side_init(&side, options);
	while (read(in, &order, sizeof order) == sizeof order) {
		struct answer answer = { 0 };
		if (order.method == METHOD_SOCKET) {
			if (fd < 0)
				fd = accept(listener, NULL, NULL);
			uint64_t cpu_ns = process_cpu_ns();
			receive_socket(&side, &order, fd);
			answer.cpu_ns = process_cpu_ns() - cpu_ns;
		} else {
			receive_xfer(&side, &order, &answer, out);
		}
		write_whole(out, &answer, sizeof answer);
	}
	side_fini(&side);
}

/* ---- the sending process ---- */

struct sender {
	struct side side;
	int to, from, fd;
	uint16_t port;
	char *copy; /* memcpy()'s target */
	uint64_t *sums;
};

static struct sample sample_of(uint64_t bytes, uint64_t wall_ns, uint64_t cpu_ns)
{
	double cpu = (double)cpu_ns / (double)bytes;
	return (struct sample){ (double)bytes / (double)wall_ns, cpu, cpu };
}

static struct sample run_memcpy(struct sender *sender, const struct order *order)
{
	uint64_t cpu_ns = process_cpu_ns(), wall_ns = clock_now_ns();
	for (uint32_t i = 0; i < order->count; i++) {
		uint64_t at = place(&sender->side, i, order->bytes);
		memcpy(sender->copy + at, (char *)sender->side.slab.base + at, order->bytes);
	}
	wall_ns = clock_now_ns() - wall_ns;
	return sample_of((uint64_t)order->bytes * order->count, wall_ns, process_cpu_ns() - cpu_ns);
}

static void socket_connect(struct sender *sender)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
				       .sin_port = htons(sender->port) };
	int one = 1;
	sender->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (sender->fd < 0 || connect(sender->fd, (struct sockaddr *)&address, sizeof address) ||
	    setsockopt(sender->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one))
		die("connect", -errno);
}

static struct sample run_socket(struct sender *sender, const struct order *order)
{
	struct answer answer;

	if (sender->fd < 0)
		socket_connect(sender);
	write_whole(sender->to, order, sizeof *order);
	uint64_t cpu_ns = process_cpu_ns(), wall_ns = clock_now_ns();
	for (uint32_t i = 0; i < order->count; i++) {
		const char *source = (char *)sender->side.slab.base + place(&sender->side, i, order->bytes);
		for (uint32_t at = 0; at < order->bytes;) {
			ssize_t count = send(sender->fd, source + at,
					     MIN(order->bytes - at, SOCKET_CHUNK_BYTES), MSG_NOSIGNAL);
			if (count < 0)
				die("send", -errno);
			at += count;
		}
	}
	read_whole(sender->from, &answer, sizeof answer);
	wall_ns = clock_now_ns() - wall_ns;
	return sample_of((uint64_t)order->bytes * order->count, wall_ns,
			 process_cpu_ns() - cpu_ns + answer.cpu_ns);
}

static void send_some(struct sender *sender, const struct order *order, const struct answer *answer,
		      struct xfer_peer *peer, uint32_t *at, uint32_t room)
{
	struct xfer_slice slices[64];
	bool sums = order->method == METHOD_SHM_SUMS || order->method == METHOD_TCP_SUMS;
	uint32_t count = MIN(MIN(room, order->count - *at), ARRAY_COUNT(slices));

	for (uint32_t i = 0; i < count; i++)
		slices[i] = (struct xfer_slice){ *at + i, place(&sender->side, *at + i, order->bytes),
						 order->bytes, sums ? sender->sums[*at + i] : 0 };
	int error = xfer_send(peer, answer->ticket, answer->ticket_bytes, slices, count, 1);
	if (error)
		die("send", error);
	*at += count;
}

static struct sample run_xfer(struct sender *sender, const struct order *order)
{
	struct xfer *xfer = side_xfer(&sender->side, order->method);
	struct xfer_peer *peer;
	struct xfer_event event;
	struct answer answer;
	uint32_t sent = 0, done = 0;

	write_whole(sender->to, order, sizeof *order);
	read_whole(sender->from, &answer, sizeof answer);
	if (xfer_peer_ref(xfer, answer.address, answer.address_bytes, &peer))
		die("address", -EINVAL);
	uint64_t cpu_ns = process_cpu_ns(), wall_ns = clock_now_ns();
	while (done < order->count) {
		while (sent < order->count && sent - done < sender->side.options.depth)
			send_some(sender, order, &answer, peer, &sent,
				  sender->side.options.depth - (sent - done));
		side_wait(&sender->side);
		while (xfer_poll(xfer, &event)) {
			if (event.status)
				die("a slice was not sent", event.status);
			done++;
		}
	}
	wall_ns = clock_now_ns() - wall_ns;
	cpu_ns = process_cpu_ns() - cpu_ns;
	read_whole(sender->from, &answer, sizeof answer);
	/* The peer is not given back: its connection stays for the next round. */
	return sample_of((uint64_t)order->bytes * order->count, wall_ns, cpu_ns + answer.cpu_ns);
}

static struct sample run(struct sender *sender, const struct order *order)
{
	if (order->method == METHOD_MEMCPY)
		return run_memcpy(sender, order);
	if (order->method == METHOD_SOCKET)
		return run_socket(sender, order);
	return run_xfer(sender, order);
}

/* ---- the table ---- */

static int compare_doubles(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

static struct sample median_of(const struct sample samples[], uint32_t count)
{
	double gb_s[ROUNDS_MAX], cpu[ROUNDS_MAX];
	for (uint32_t i = 0; i < count; i++) {
		gb_s[i] = samples[i].gb_s;
		cpu[i] = samples[i].cpu_s_per_gb;
	}
	qsort(gb_s, count, sizeof *gb_s, compare_doubles);
	qsort(cpu, count, sizeof *cpu, compare_doubles);
	return (struct sample){ gb_s[count / 2], cpu[count / 2], cpu[0] };
}

static void print_row(FILE *json, bool first, const struct order *order, uint32_t rounds,
		      const struct sample *median, const struct sample *peer, const char *peer_name)
{
	printf(" %-10u %-9s %-8u %9.2f %10.3f %8.3f", order->bytes, method_names[order->method], rounds,
	       median->gb_s, median->cpu_s_per_gb, median->cpu_s_per_gb_min);
	if (peer)
		printf("   %4.0f %% of %s, %.2f x its CPU (least: %.2f x)",
		       100 * median->gb_s / peer->gb_s, peer_name,
		       median->cpu_s_per_gb / peer->cpu_s_per_gb,
		       median->cpu_s_per_gb_min / peer->cpu_s_per_gb_min);
	printf("\n");
	fflush(stdout);
	if (json)
		fprintf(json, "%s\n  {\"bytes\": %u, \"method\": \"%s\", \"rounds\": %u, \"gb_s\": %.4f, "
			      "\"cpu_s_per_gb\": %.4f, \"cpu_s_per_gb_min\": %.4f}",
			first ? "" : ",", order->bytes, method_names[order->method], rounds, median->gb_s,
			median->cpu_s_per_gb, median->cpu_s_per_gb_min);
}

static void prepare_sums(struct sender *sender, const struct order *order)
{
	for (uint32_t i = 0; i < order->count; i++)
		sender->sums[i] = hash_slice((char *)sender->side.slab.base +
						     place(&sender->side, i, order->bytes),
					     order->bytes);
}

static void run_size(struct sender *sender, uint32_t bytes, FILE *json, bool first)
{
	static struct sample samples[METHOD_COUNT][ROUNDS_MAX];
	const struct options *options = &sender->side.options;
	struct sample medians[METHOD_COUNT] = { 0 };
	struct order order = { .bytes = bytes };

	order.count = (uint32_t)MIN(MAX(options->round_bytes / bytes, 4), SLICES_PER_ROUND_MAX);
	prepare_sums(sender, &order);
	for (uint32_t round = 0; round <= options->rounds; round++) /* the first one warms up */
		for (int method = 0; method < METHOD_COUNT; method++) {
			if (!options->methods[method])
				continue;
			order.method = method;
			struct sample sample = run(sender, &order);
			if (round)
				samples[method][round - 1] = sample;
		}
	for (int method = 0; method < METHOD_COUNT; method++) {
		if (!options->methods[method])
			continue;
		int peer = is_shm(method) ? METHOD_MEMCPY : METHOD_SOCKET;
		order.method = method;
		medians[method] = median_of(samples[method], options->rounds);
		print_row(json, first, &order, options->rounds, &medians[method],
			  method > METHOD_SOCKET && options->methods[peer] ? &medians[peer] : NULL,
			  method_names[peer]);
		first = false;
	}
}

/* ---- arguments ---- */

static void usage(FILE *to)
{
	fprintf(to, "usage: baton bench xfer [--transport shm|tcp|all] [--sizes BYTES,...] [--depth N]\n"
		    "         [--streams N] [--rounds N] [--round-mib N] [--slab-mib N] [--json FILE]\n"
		    "Bandwidth and CPU seconds per GB (both processes together) beside memcpy and a bare\n"
		    "TCP socket. \"+sums\": the caller brings the checksums; else the sender computes them.\n");
}

static int parse_sizes(char *text, struct options *options)
{
	options->size_count = 0;
	for (char *word = strtok(text, ","); word; word = strtok(NULL, ",")) {
		unsigned long bytes = strtoul(word, NULL, 0);
		if (!bytes || bytes % HASH_LEAF_BYTES || bytes > XFER_SLICE_BYTES_MAX ||
		    options->size_count == SIZES_MAX)
			return -EINVAL;
		options->sizes[options->size_count++] = (uint32_t)bytes;
	}
	return options->size_count ? 0 : -EINVAL;
}

static int parse_transport(const char *name, struct options *options)
{
	bool shm = strcmp(name, "tcp"), tcp = strcmp(name, "shm");
	if (shm && tcp && strcmp(name, "all"))
		return -EINVAL;
	options->methods[METHOD_MEMCPY] = options->methods[METHOD_SHM] = shm;
	options->methods[METHOD_SHM_SUMS] = shm;
	options->methods[METHOD_SOCKET] = options->methods[METHOD_TCP] = tcp;
	options->methods[METHOD_TCP_SUMS] = tcp;
	return 0;
}

/* Return: 0, 1 after --help, or -EINVAL. */
static int parse(int argc, char **argv, struct options *options)
{
	static const struct option longs[] = {
		{ "transport", required_argument, NULL, 't' }, { "sizes", required_argument, NULL, 's' },
		{ "depth", required_argument, NULL, 'd' },     { "streams", required_argument, NULL, 'n' },
		{ "rounds", required_argument, NULL, 'r' },    { "round-mib", required_argument, NULL, 'b' },
		{ "slab-mib", required_argument, NULL, 'm' },  { "json", required_argument, NULL, 'j' },
		{ "help", no_argument, NULL, 'h' },	       { 0 },
	};
	int letter, error = 0;

	optind = 1;
	while (!error && (letter = getopt_long(argc, argv, "", longs, NULL)) != -1) {
		unsigned long number = optarg ? strtoul(optarg, NULL, 0) : 0;
		switch (letter) {
		case 't': error = parse_transport(optarg, options); break;
		case 's': error = parse_sizes(optarg, options); break;
		case 'd': options->depth = (uint32_t)number; break;
		case 'n': options->streams = (uint32_t)number; break;
		case 'r': options->rounds = (uint32_t)number; break;
		case 'b': options->round_bytes = (uint64_t)number * MIB; break;
		case 'm': options->slab_bytes = (uint64_t)number * MIB; break;
		case 'j': options->json = optarg; break;
		case 'h': usage(stdout); return 1;
		default: error = -EINVAL;
		}
	}
	if (optind < argc || !options->depth || options->depth > XFER_PEER_SLICES_MAX ||
	    !options->rounds || options->rounds > ROUNDS_MAX || !options->round_bytes ||
	    options->slab_bytes < XFER_SLICE_BYTES_MAX || options->slab_bytes % XFER_SLICE_BYTES_MAX)
		error = -EINVAL;
	if (error)
		usage(stderr);
	return error;
}

/* ---- the whole ---- */

static pid_t receiver_fork(struct sender *sender, const struct options *options)
{
	int to[2], from[2], listener = socket_listen(&sender->port);
	if (pipe2(to, O_CLOEXEC) || pipe2(from, O_CLOEXEC))
		die("pipe", -errno);
	fflush(NULL);
	pid_t pid = fork();
	if (pid < 0)
		die("fork", -errno);
	if (!pid) {
		close(to[1]);
		close(from[0]);
		receiver_run(options, to[0], from[1], listener);
		_exit(0);
	}
	close(to[0]);
	close(from[1]);
	close(listener);
	sender->to = to[1];
	sender->from = from[0];
	sender->fd = -1;
	return pid;
}

static void sender_run(struct sender *sender, const struct options *options)
{
	FILE *json = NULL;

	if (options->json && !(json = fopen(options->json, "w")))
		die(options->json, -errno);
	side_init(&sender->side, options);
	sender->copy = malloc(options->slab_bytes);
	sender->sums = calloc(SLICES_PER_ROUND_MAX, sizeof *sender->sums);
	CHECK(sender->copy && sender->sums);
	memset(sender->copy, 1, options->slab_bytes);
	printf("depth %u, %u tcp streams, slabs of %u MiB, medians of %u rounds\n", options->depth,
	       options->streams, (uint32_t)(options->slab_bytes / MIB), options->rounds);
	printf(" %-10s %-9s %-8s %9s %10s %8s\n", "#bytes", "method", "#rounds", "BW[GB/s]", "CPU[s/GB]",
	       "least");
	if (json)
		fprintf(json, "{\"depth\": %u, \"streams\": %u, \"slab_bytes\": %llu, \"rows\": [",
			options->depth, options->streams, (unsigned long long)options->slab_bytes);
	for (uint32_t i = 0; i < options->size_count; i++)
		run_size(sender, options->sizes[i], json, i == 0);
	if (json) {
		fprintf(json, "\n]}\n");
		fclose(json);
	}
	side_fini(&sender->side);
	free(sender->copy);
	free(sender->sums);
}

int bench_xfer_main(int argc, char **argv)
{
	struct options options = {
		.slab_bytes = 512ull * MIB, .round_bytes = 256ull * MIB, .depth = 128, .rounds = 5, .streams = 2,
		.sizes = { 4096, 16384, 65536, 262144, MIB, 4 * MIB, 16 * MIB, 64 * MIB }, .size_count = 8,
	};
	struct sender sender;
	int status;

	(void)parse_transport("all", &options);
	status = parse(argc, argv, &options);
	if (status)
		return status < 0 ? 2 : 0;
	signal(SIGPIPE, SIG_IGN);
	pid_t pid = receiver_fork(&sender, &options);
	sender_run(&sender, &options);
	close(sender.to);
	if (sender.fd >= 0)
		close(sender.fd);
	close(sender.from);
	if (waitpid(pid, &status, 0) != pid || !WIFEXITED(status) || WEXITSTATUS(status)) {
		fprintf(stderr, "bench xfer: the receiving process failed\n");
		return 1;
	}
	return 0;
}
