/* Results are 0 or a count, else a negative errno, as libuv, io_uring and systemd speak. Our own
 * codes lie below every errno and come from one list, which also gives name and text. */
#ifndef BATON_BASE_ERR_H
#define BATON_BASE_ERR_H

#define BATON_ERR_LIST(E)                                                                        \
	E(EPROTOCOL, -5001, "the peer broke the protocol")                                       \
	E(EAUTH, -5002, "the peer does not hold the cluster key")                                \
	E(EVERSION, -5003, "no protocol version in common")                                      \
	E(EFORMAT, -5004, "the file's format is wrong or not supported")                         \
	E(ECHECKSUM, -5005, "checksum mismatch")                                                 \
	E(EFENCED, -5006, "an older incarnation; a newer one has taken its place")               \
	E(ELEASE, -5007, "lease expired")                                                        \
	E(EREVOKED, -5008, "the receiver took the transfer back")

enum {
#define BATON_ERR_ENUM(name, value, text) BATON_##name = (value),
	BATON_ERR_LIST(BATON_ERR_ENUM)
#undef BATON_ERR_ENUM
};

/* Text of a negative errno or of one of our codes; static storage or strerror's. Never NULL. */
const char *err_text(int error);

#endif
