/*
 * What two xfers say to each other, byte for byte; pure packing and unpacking. All integers are
 * little-endian. Every stream transport (tcp, shm) speaks the same frames:
 *
 *   acceptor  > connector   GREETING  magic, version, nonce
 *   connector > acceptor    PROOF     magic, version, both instance ids, nonce, mac
 *   acceptor  > connector   CONFIRM   magic, version, mac
 *   connector > acceptor    SLAB      shm only: bytes of the slab; its memfd rides along
 *   then, any number of times:
 *   connector > acceptor    SLICE     header [payload, 8-byte sum]   payload and sum: tcp only
 *   acceptor  > connector   ACK       of each slice, in order, after its last byte was read
 *
 * The connector proves first, so one that does not hold the cluster key learns a nonce and
 * nothing else. Both macs cover everything said before them and a label for the role, so neither
 * can be reflected; the target's instance id is among it, so an address of a former life of a
 * process does not reach its next one.
 */
#ifndef BATON_XFER_WIRE_H
#define BATON_XFER_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "xfer/xfer.h"

#define WIRE_VERSION 1
#define WIRE_GREETING_BYTES 40
#define WIRE_PROOF_BYTES 88
#define WIRE_CONFIRM_BYTES 40
#define WIRE_SLAB_BYTES 16
#define WIRE_SLICE_BYTES 64
#define WIRE_SUM_BYTES 8
#define WIRE_ACK_BYTES 16
#define WIRE_TICKET_BYTES 40

/* Says who grants what: a guess fails on @token, a former life's grant on @instance. */
struct wire_ticket {
	uint64_t instance, token;
	uint32_t index, generation;
	uint32_t range_count;
};
size_t wire_pack_ticket(const struct wire_ticket *ticket, uint8_t ret_bytes[XFER_TICKET_BYTES_MAX]);
int wire_unpack_ticket(const uint8_t *bytes, size_t count, struct wire_ticket *ret_ticket);

struct wire_address {
	uint8_t boot_id[16];
	uint64_t instance;
	uint16_t port;      /* 0: no tcp */
	char host[64];      /* numeric */
	char socket[108];   /* "": no shm; a leading '@' stands for the abstract namespace */
};
size_t wire_pack_address(const struct wire_address *address,
			 uint8_t ret_bytes[XFER_ADDRESS_BYTES_MAX]);
int wire_unpack_address(const uint8_t *bytes, size_t count, struct wire_address *ret_address);

struct wire_slice {
	bool inline_payload; /* else it lies in the sender's slab, at @offset, with @sum */
	uint64_t sequence;   /* of this connection, from 0 */
	struct wire_ticket ticket;
	uint32_t index, bytes;
	uint64_t offset, sum;
};
void wire_pack_slice(const struct wire_slice *slice, uint8_t ret_bytes[WIRE_SLICE_BYTES]);
int wire_unpack_slice(const uint8_t bytes[WIRE_SLICE_BYTES], struct wire_slice *ret_slice);

void wire_pack_ack(uint64_t sequence, int status, uint8_t ret_bytes[WIRE_ACK_BYTES]);
int wire_unpack_ack(const uint8_t bytes[WIRE_ACK_BYTES], uint64_t *ret_sequence, int *ret_status);

void wire_pack_u64(uint64_t value, uint8_t ret_bytes[8]);
uint64_t wire_unpack_u64(const uint8_t bytes[8]);

void wire_pack_greeting(const uint8_t nonce[32], uint8_t ret_bytes[WIRE_GREETING_BYTES]);
int wire_check_greeting(const uint8_t bytes[WIRE_GREETING_BYTES]);
void wire_pack_proof(const uint8_t key[32], const char *transport, const uint8_t *greeting,
		     uint64_t own_instance, uint64_t target_instance, const uint8_t nonce[32],
		     uint8_t ret_bytes[WIRE_PROOF_BYTES]);
/* Return: 0, BATON_EPROTOCOL, BATON_EVERSION, BATON_EAUTH, or BATON_EFENCED when it is meant for another
 * instance. */
int wire_check_proof(const uint8_t key[32], const char *transport, const uint8_t *greeting,
		     uint64_t own_instance, const uint8_t bytes[WIRE_PROOF_BYTES]);
void wire_pack_confirm(const uint8_t key[32], const char *transport, const uint8_t *greeting,
		       const uint8_t *proof, uint8_t ret_bytes[WIRE_CONFIRM_BYTES]);
int wire_check_confirm(const uint8_t key[32], const char *transport, const uint8_t *greeting,
		       const uint8_t *proof, const uint8_t bytes[WIRE_CONFIRM_BYTES]);
void wire_pack_slab(uint64_t bytes, uint8_t ret_bytes[WIRE_SLAB_BYTES]);
int wire_unpack_slab(const uint8_t bytes[WIRE_SLAB_BYTES], uint64_t *ret_bytes);

#endif
