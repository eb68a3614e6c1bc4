/* Transport tcp: payload follows its header; several connections to a peer share its queue. */
#include "xfer/xfer_internal.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define LISTEN_BACKLOG 128

/* Numeric hosts only: the xfer thread may not wait for DNS. */
static int resolve(const char *host, uint16_t port, int flags, struct sockaddr_storage *ret_address,
		   socklen_t *ret_bytes)
{
	struct addrinfo hints = { .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = flags };
	struct addrinfo *found;
	char service[8];

	snprintf(service, sizeof service, "%u", port);
	if (getaddrinfo(host, service, &hints, &found))
		return -EADDRNOTAVAIL;
	memcpy(ret_address, found->ai_addr, found->ai_addrlen);
	*ret_bytes = found->ai_addrlen;
	freeaddrinfo(found);
	return 0;
}

static bool is_wildcard(const struct sockaddr_storage *address)
{
	if (address->ss_family == AF_INET)
		return ((const struct sockaddr_in *)address)->sin_addr.s_addr == INADDR_ANY;
	return IN6_IS_ADDR_UNSPECIFIED(&((const struct sockaddr_in6 *)address)->sin6_addr);
}

static int advertise(struct xfer *xfer, struct sockaddr_storage *bound, socklen_t bytes,
		     struct wire_address *address)
{
	int error = 0;

	if (xfer->config.advertise)
		error = resolve(xfer->config.advertise, 0, 0, bound, &bytes);
	if (error)
		return error;
	if (is_wildcard(bound))
		return -EDESTADDRREQ;
	return getnameinfo((struct sockaddr *)bound, bytes, address->host, sizeof address->host, NULL, 0,
			   NI_NUMERICHOST)
		       ? -EADDRNOTAVAIL
		       : 0;
}

static int tcp_listen(struct xfer *xfer, struct wire_address *address)
{
	struct sockaddr_storage bound;
	socklen_t bytes;
	int one = 1;
	/* At start a name may be looked up; what travels to others is the number. */
	int error = resolve(xfer->config.host, xfer->config.port, AI_PASSIVE, &bound, &bytes);
	if (error)
		return error;
	int fd = socket(bound.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return -errno;
	(void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
	if (bind(fd, (struct sockaddr *)&bound, bytes) || listen(fd, LISTEN_BACKLOG))
		goto fail;
	bytes = sizeof bound;
	if (getsockname(fd, (struct sockaddr *)&bound, &bytes))
		goto fail;
	address->port = ntohs(bound.ss_family == AF_INET ? ((struct sockaddr_in *)&bound)->sin_port
							 : ((struct sockaddr_in6 *)&bound)->sin6_port);
	error = advertise(xfer, &bound, bytes, address);
	if (!error)
		return fd;
	close(fd);
	return error;
fail:
	error = -errno;
	close(fd);
	return error;
}

static void tcp_adjust(int fd)
{
	int one = 1;
	(void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}

static int tcp_connect(const struct wire_address *address)
{
	struct sockaddr_storage target;
	socklen_t bytes;

	if (!address->port)
		return -EADDRNOTAVAIL;
	int error = resolve(address->host, address->port, AI_NUMERICHOST, &target, &bytes);
	if (error)
		return error;
	int fd = socket(target.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return -errno;
	tcp_adjust(fd);
	if (!connect(fd, (struct sockaddr *)&target, bytes) || errno == EINPROGRESS)
		return fd;
	error = -errno;
	close(fd);
	return error;
}

static int tcp_introduce(struct xfer__conn *conn)
{
	return 0;
}

static void tcp_part(struct xfer__conn *conn)
{
}

const struct xfer__ops xfer__tcp = {
	.transport = XFER_TCP,
	.name = "tcp",
	.listen = tcp_listen,
	.connect = tcp_connect,
	.adjust = tcp_adjust,
	.introduce = tcp_introduce,
	.meet = tcp_introduce,
	.part = tcp_part,
};
