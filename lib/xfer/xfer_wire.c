#include "xfer/xfer_wire.h"

#include <errno.h>
#include <openssl/crypto.h>
#include <string.h>

#include "base/check.h"
#include "base/err.h"
#include "base/hash.h"

/* Four letters each, as a person sees them in a capture. */
#define MAGIC_GREETING 0x31475842u /* BXG1 */
#define MAGIC_PROOF 0x31505842u	   /* BXP1 */
#define MAGIC_CONFIRM 0x31435842u  /* BXC1 */
#define MAGIC_SLAB 0x314d5842u	   /* BXM1 */
#define MAGIC_SLICE 0x31535842u	   /* BXS1 */
#define MAGIC_ACK 0x31415842u	   /* BXA1 */
#define MAGIC_TICKET 0x31545842u   /* BXT1 */
#define MAGIC_ADDRESS 0x31445842u  /* BXD1 */

#define PROOF_MAC_AT 56
#define SLICE_INLINE 1u
#define SLICE_IN_SLAB 2u

static_assert(WIRE_TICKET_BYTES <= XFER_TICKET_BYTES_MAX, "a ticket fits");

static void put_u32(uint8_t *at, uint32_t value)
{
	for (int i = 0; i < 4; i++)
		at[i] = (uint8_t)(value >> (8 * i));
}

static uint32_t get_u32(const uint8_t *at)
{
	return at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

void wire_pack_u64(uint64_t value, uint8_t ret_bytes[8])
{
	put_u32(ret_bytes, (uint32_t)value);
	put_u32(ret_bytes + 4, (uint32_t)(value >> 32));
}

uint64_t wire_unpack_u64(const uint8_t bytes[8])
{
	return get_u32(bytes) | (uint64_t)get_u32(bytes + 4) << 32;
}

size_t wire_pack_ticket(const struct wire_ticket *ticket, uint8_t ret_bytes[XFER_TICKET_BYTES_MAX])
{
	put_u32(ret_bytes, MAGIC_TICKET);
	put_u32(ret_bytes + 4, ticket->range_count);
	wire_pack_u64(ticket->instance, ret_bytes + 8);
	wire_pack_u64(ticket->token, ret_bytes + 16);
	put_u32(ret_bytes + 24, ticket->index);
	put_u32(ret_bytes + 28, ticket->generation);
	wire_pack_u64(0, ret_bytes + 32); /* room for rdma's key */
	return WIRE_TICKET_BYTES;
}

int wire_unpack_ticket(const uint8_t *bytes, size_t count, struct wire_ticket *ret_ticket)
{
	if (count != WIRE_TICKET_BYTES || get_u32(bytes) != MAGIC_TICKET)
		return -EINVAL;
	*ret_ticket = (struct wire_ticket){
		.range_count = get_u32(bytes + 4),
		.instance = wire_unpack_u64(bytes + 8),
		.token = wire_unpack_u64(bytes + 16),
		.index = get_u32(bytes + 24),
		.generation = get_u32(bytes + 28),
	};
	return ret_ticket->range_count ? 0 : -EINVAL;
}

size_t wire_pack_address(const struct wire_address *address,
			 uint8_t ret_bytes[XFER_ADDRESS_BYTES_MAX])
{
	size_t host_bytes = strlen(address->host), socket_bytes = strlen(address->socket);

	static_assert(32 + sizeof address->host + sizeof address->socket <= XFER_ADDRESS_BYTES_MAX,
		      "an address fits");
	put_u32(ret_bytes, MAGIC_ADDRESS);
	memcpy(ret_bytes + 4, address->boot_id, 16);
	wire_pack_u64(address->instance, ret_bytes + 20);
	ret_bytes[28] = (uint8_t)address->port;
	ret_bytes[29] = (uint8_t)(address->port >> 8);
	ret_bytes[30] = (uint8_t)host_bytes;
	ret_bytes[31] = (uint8_t)socket_bytes;
	memcpy(ret_bytes + 32, address->host, host_bytes);
	memcpy(ret_bytes + 32 + host_bytes, address->socket, socket_bytes);
	return 32 + host_bytes + socket_bytes;
}

int wire_unpack_address(const uint8_t *bytes, size_t count, struct wire_address *ret_address)
{
	struct wire_address address = { 0 };

	if (count < 32 || get_u32(bytes) != MAGIC_ADDRESS)
		return -EINVAL;
	size_t host_bytes = bytes[30], socket_bytes = bytes[31];
	if (host_bytes >= sizeof address.host || socket_bytes >= sizeof address.socket ||
	    count != 32 + host_bytes + socket_bytes)
		return -EINVAL;
	if (memchr(bytes + 32, 0, host_bytes + socket_bytes))
		return -EINVAL;
	memcpy(address.boot_id, bytes + 4, 16);
	address.instance = wire_unpack_u64(bytes + 20);
	address.port = (uint16_t)(bytes[28] | bytes[29] << 8);
	memcpy(address.host, bytes + 32, host_bytes);
	memcpy(address.socket, bytes + 32 + host_bytes, socket_bytes);
	*ret_address = address;
	return 0;
}

void wire_pack_slice(const struct wire_slice *slice, uint8_t ret_bytes[WIRE_SLICE_BYTES])
{
	put_u32(ret_bytes, MAGIC_SLICE);
	put_u32(ret_bytes + 4, slice->inline_payload ? SLICE_INLINE : SLICE_IN_SLAB);
	wire_pack_u64(slice->sequence, ret_bytes + 8);
	wire_pack_u64(slice->ticket.instance, ret_bytes + 16);
	put_u32(ret_bytes + 24, slice->ticket.index);
	put_u32(ret_bytes + 28, slice->ticket.generation);
	wire_pack_u64(slice->ticket.token, ret_bytes + 32);
	put_u32(ret_bytes + 40, slice->index);
	put_u32(ret_bytes + 44, slice->bytes);
	wire_pack_u64(slice->offset, ret_bytes + 48);
	wire_pack_u64(slice->sum, ret_bytes + 56);
}

int wire_unpack_slice(const uint8_t bytes[WIRE_SLICE_BYTES], struct wire_slice *ret_slice)
{
	uint32_t kind = get_u32(bytes + 4);

	if (get_u32(bytes) != MAGIC_SLICE || (kind != SLICE_INLINE && kind != SLICE_IN_SLAB))
		return BATON_EPROTOCOL;
	*ret_slice = (struct wire_slice){
		.inline_payload = kind == SLICE_INLINE,
		.sequence = wire_unpack_u64(bytes + 8),
		.ticket = { .instance = wire_unpack_u64(bytes + 16),
			    .index = get_u32(bytes + 24),
			    .generation = get_u32(bytes + 28),
			    .token = wire_unpack_u64(bytes + 32) },
		.index = get_u32(bytes + 40),
		.bytes = get_u32(bytes + 44),
		.offset = wire_unpack_u64(bytes + 48),
		.sum = wire_unpack_u64(bytes + 56),
	};
	if (!ret_slice->bytes || ret_slice->bytes > XFER_SLICE_BYTES_MAX ||
	    ret_slice->bytes % HASH_LEAF_BYTES)
		return BATON_EPROTOCOL;
	return 0;
}

void wire_pack_ack(uint64_t sequence, int status, uint8_t ret_bytes[WIRE_ACK_BYTES])
{
	put_u32(ret_bytes, MAGIC_ACK);
	put_u32(ret_bytes + 4, (uint32_t)status);
	wire_pack_u64(sequence, ret_bytes + 8);
}

int wire_unpack_ack(const uint8_t bytes[WIRE_ACK_BYTES], uint64_t *ret_sequence, int *ret_status)
{
	int status = (int)get_u32(bytes + 4);

	if (get_u32(bytes) != MAGIC_ACK || status > 0)
		return BATON_EPROTOCOL;
	*ret_status = status;
	*ret_sequence = wire_unpack_u64(bytes + 8);
	return 0;
}

void wire_pack_greeting(const uint8_t nonce[32], uint8_t ret_bytes[WIRE_GREETING_BYTES])
{
	put_u32(ret_bytes, MAGIC_GREETING);
	put_u32(ret_bytes + 4, WIRE_VERSION);
	memcpy(ret_bytes + 8, nonce, 32);
}

static int check_head(const uint8_t *bytes, uint32_t magic)
{
	if (get_u32(bytes) != magic)
		return BATON_EPROTOCOL;
	return get_u32(bytes + 4) == WIRE_VERSION ? 0 : BATON_EVERSION;
}

int wire_check_greeting(const uint8_t bytes[WIRE_GREETING_BYTES])
{
	return check_head(bytes, MAGIC_GREETING);
}

static void mac_of(const uint8_t key[32], const char *role, const char *transport,
		   const uint8_t *greeting, const uint8_t *proof, size_t proof_bytes,
		   uint8_t ret_mac[32])
{
	/* The labels' NULs part them. */
	const struct hash_piece pieces[] = {
		{ "baton xfer", 11 },	 { role, strlen(role) + 1 },
		{ transport, strlen(transport) + 1 }, { greeting, WIRE_GREETING_BYTES },
		{ proof, proof_bytes },
	};
	hash_hmac_sha256(key, 32, pieces, ARRAY_COUNT(pieces), ret_mac);
}

void wire_pack_proof(const uint8_t key[32], const char *transport, const uint8_t *greeting,
		     uint64_t own_instance, uint64_t target_instance, const uint8_t nonce[32],
		     uint8_t ret_bytes[WIRE_PROOF_BYTES])
{
	put_u32(ret_bytes, MAGIC_PROOF);
	put_u32(ret_bytes + 4, WIRE_VERSION);
	wire_pack_u64(own_instance, ret_bytes + 8);
	wire_pack_u64(target_instance, ret_bytes + 16);
	memcpy(ret_bytes + 24, nonce, 32);
	mac_of(key, "connector", transport, greeting, ret_bytes, PROOF_MAC_AT,
	       ret_bytes + PROOF_MAC_AT);
}

int wire_check_proof(const uint8_t key[32], const char *transport, const uint8_t *greeting,
		     uint64_t own_instance, const uint8_t bytes[WIRE_PROOF_BYTES])
{
	uint8_t mac[32];
	int error = check_head(bytes, MAGIC_PROOF);

	if (error)
		return error;
	mac_of(key, "connector", transport, greeting, bytes, PROOF_MAC_AT, mac);
	if (CRYPTO_memcmp(mac, bytes + PROOF_MAC_AT, 32))
		return BATON_EAUTH;
	return wire_unpack_u64(bytes + 16) == own_instance ? 0 : BATON_EFENCED;
}

void wire_pack_confirm(const uint8_t key[32], const char *transport, const uint8_t *greeting,
		       const uint8_t *proof, uint8_t ret_bytes[WIRE_CONFIRM_BYTES])
{
	put_u32(ret_bytes, MAGIC_CONFIRM);
	put_u32(ret_bytes + 4, WIRE_VERSION);
	mac_of(key, "acceptor", transport, greeting, proof, WIRE_PROOF_BYTES, ret_bytes + 8);
}

int wire_check_confirm(const uint8_t key[32], const char *transport, const uint8_t *greeting,
		       const uint8_t *proof, const uint8_t bytes[WIRE_CONFIRM_BYTES])
{
	uint8_t mac[32];
	int error = check_head(bytes, MAGIC_CONFIRM);

	if (error)
		return error;
	mac_of(key, "acceptor", transport, greeting, proof, WIRE_PROOF_BYTES, mac);
	return CRYPTO_memcmp(mac, bytes + 8, 32) ? BATON_EAUTH : 0;
}

void wire_pack_slab(uint64_t bytes, uint8_t ret_bytes[WIRE_SLAB_BYTES])
{
	put_u32(ret_bytes, MAGIC_SLAB);
	put_u32(ret_bytes + 4, 0);
	wire_pack_u64(bytes, ret_bytes + 8);
}

int wire_unpack_slab(const uint8_t bytes[WIRE_SLAB_BYTES], uint64_t *ret_bytes)
{
	if (get_u32(bytes) != MAGIC_SLAB)
		return BATON_EPROTOCOL;
	*ret_bytes = wire_unpack_u64(bytes + 8);
	return *ret_bytes ? 0 : BATON_EPROTOCOL;
}
