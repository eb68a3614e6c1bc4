/*
 * Transport shm: the frames travel over a unix socket and the payload does not travel at all. The
 * connector hands over its slab's memfd; the acceptor maps it read-only and pulls. F_SEAL_SHRINK is
 * demanded, since a peer that could shorten the file could kill us with SIGBUS.
 */
#include "xfer/xfer_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/err.h"

#define LISTEN_BACKLOG 128

/* ---- slabs ---- */

int xfer_slab_map(uint64_t bytes, struct xfer_slab *ret_slab)
{
	int error;
	int fd = memfd_create("baton-slab", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (fd < 0)
		return -errno;
	if (ftruncate(fd, (off_t)bytes) || fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK))
		goto fail;
	void *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (base == MAP_FAILED)
		goto fail;
	*ret_slab = (struct xfer_slab){ .memfd = fd, .base = base, .bytes = bytes };
	return 0;
fail:
	error = -errno;
	close(fd);
	return error;
}

void xfer_slab_unmap(struct xfer_slab *slab)
{
	if (slab->base)
		munmap(slab->base, slab->bytes);
	if (slab->memfd >= 0)
		close(slab->memfd);
	*slab = (struct xfer_slab){ .memfd = -1 };
}

static int slab_seal(const struct xfer_slab *slab)
{
	int seals = fcntl(slab->memfd, F_GET_SEALS);
	if (seals < 0)
		return -errno;
	if (seals & F_SEAL_SHRINK)
		return 0;
	return fcntl(slab->memfd, F_ADD_SEALS, F_SEAL_SHRINK) ? -errno : 0;
}

/* ---- sockets ---- */

static int socket_address(const char *name, struct sockaddr_un *ret_address, socklen_t *ret_bytes)
{
	size_t bytes = strlen(name);

	*ret_address = (struct sockaddr_un){ .sun_family = AF_UNIX };
	if (!bytes || bytes >= sizeof ret_address->sun_path)
		return -EADDRNOTAVAIL;
	memcpy(ret_address->sun_path, name, bytes);
	*ret_bytes = offsetof(struct sockaddr_un, sun_path) + bytes + 1;
	if (name[0] == '@') {
		ret_address->sun_path[0] = 0;
		(*ret_bytes)--; /* an abstract name has a length and no end */
	}
	return 0;
}

static int shm_listen(struct xfer *xfer, struct wire_address *address)
{
	const char *dir = xfer->config.socket_dir;
	struct sockaddr_un bound;
	socklen_t bytes;
	int error = slab_seal(&xfer->config.slab);

	if (error)
		return error;
	int length = snprintf(address->socket, sizeof address->socket, "%s%sbaton-xfer-%016" PRIx64,
			      dir ? dir : "@", dir ? "/" : "", address->instance);
	if (length >= (int)sizeof address->socket)
		return -ENAMETOOLONG;
	error = socket_address(address->socket, &bound, &bytes);
	if (error)
		return error;
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return -errno;
	if (bind(fd, (struct sockaddr *)&bound, bytes) || listen(fd, LISTEN_BACKLOG)) {
		error = -errno;
		close(fd);
		return error;
	}
	if (dir)
		xfer->socket_path = strdup(address->socket);
	return fd;
}

static int shm_connect(const struct wire_address *address)
{
	struct sockaddr_un target;
	socklen_t bytes;
	int error = socket_address(address->socket, &target, &bytes);

	if (error)
		return error;
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return -errno;
	if (!connect(fd, (struct sockaddr *)&target, bytes))
		return fd;
	error = -errno; /* EAGAIN: its backlog is full */
	close(fd);
	return error == -EAGAIN ? -ECONNREFUSED : error;
}

static void shm_adjust(int fd)
{
}

/* ---- handing the slab over ---- */

static int shm_introduce(struct xfer__conn *conn)
{
	uint8_t frame[WIRE_SLAB_BYTES];
	union {
		char bytes[CMSG_SPACE(sizeof(int))];
		struct cmsghdr align;
	} control = { 0 };
	struct iovec iov = { frame, sizeof frame };
	struct msghdr message = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control.bytes,
				  .msg_controllen = sizeof control.bytes };
	struct cmsghdr *head = CMSG_FIRSTHDR(&message);

	head->cmsg_level = SOL_SOCKET;
	head->cmsg_type = SCM_RIGHTS;
	head->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(head), &conn->xfer->config.slab.memfd, sizeof(int));
	wire_pack_slab(conn->xfer->config.slab.bytes, frame);
	ssize_t count = sendmsg(conn->source.fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
	if (count < 0)
		return errno == EINTR ? -EAGAIN : -errno;
	/* A unix socket takes so little whole or not at all. */
	return count == sizeof frame ? 0 : -EIO;
}

/* Keeps the one descriptor that may come with the frame; any more are refused. */
static int take_descriptor(struct xfer__conn *conn, struct msghdr *message)
{
	int error = message->msg_flags & MSG_CTRUNC ? BATON_EPROTOCOL : 0;

	for (struct cmsghdr *head = CMSG_FIRSTHDR(message); head; head = CMSG_NXTHDR(message, head)) {
		if (head->cmsg_level != SOL_SOCKET || head->cmsg_type != SCM_RIGHTS)
			continue;
		size_t count = (head->cmsg_len - CMSG_LEN(0)) / sizeof(int);
		for (size_t i = 0; i < count; i++) {
			int fd;
			memcpy(&fd, CMSG_DATA(head) + i * sizeof fd, sizeof fd);
			if (conn->slab_fd >= 0) {
				close(fd);
				error = BATON_EPROTOCOL;
			} else {
				conn->slab_fd = fd;
			}
		}
	}
	return error;
}

static int map_source(struct xfer__conn *conn)
{
	struct stat stat;
	uint64_t bytes;
	int error = wire_unpack_slab(conn->input, &bytes);

	if (error)
		return error;
	if (conn->slab_fd < 0 || fstat(conn->slab_fd, &stat) || (uint64_t)stat.st_size < bytes)
		return BATON_EPROTOCOL;
	int seals = fcntl(conn->slab_fd, F_GET_SEALS);
	if (seals < 0 || !(seals & F_SEAL_SHRINK))
		return BATON_EPROTOCOL;
	void *source = mmap(NULL, bytes, PROT_READ, MAP_SHARED, conn->slab_fd, 0);
	if (source == MAP_FAILED)
		return -errno;
	conn->in->source = source;
	conn->in->source_bytes = bytes;
	close(conn->slab_fd);
	conn->slab_fd = -1;
	return 0;
}

static int shm_meet(struct xfer__conn *conn)
{
	while (conn->input_bytes < WIRE_SLAB_BYTES) {
		union {
			char bytes[CMSG_SPACE(4 * sizeof(int))];
			struct cmsghdr align;
		} control;
		struct iovec iov = { conn->input + conn->input_bytes, WIRE_SLAB_BYTES - conn->input_bytes };
		struct msghdr message = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control.bytes,
					  .msg_controllen = sizeof control.bytes };
		ssize_t count = recvmsg(conn->source.fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
		if (count == 0)
			return -ECONNRESET;
		if (count < 0 && errno != EINTR)
			return -errno;
		if (count < 0)
			continue;
		int error = take_descriptor(conn, &message);
		if (error)
			return error;
		conn->input_bytes += count;
	}
	conn->input_bytes = 0;
	return map_source(conn);
}

static void shm_part(struct xfer__conn *conn)
{
	if (conn->in->source)
		munmap((void *)conn->in->source, conn->in->source_bytes);
}

const struct xfer__ops xfer__shm = {
	.transport = XFER_SHM,
	.name = "shm",
	.listen = shm_listen,
	.connect = shm_connect,
	.adjust = shm_adjust,
	.introduce = shm_introduce,
	.meet = shm_meet,
	.part = shm_part,
	.pull = true,
};
