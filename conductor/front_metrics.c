/* Request families, as vLLM names them; counted on the conductor only, engine="cluster". */
#include <stdlib.h>

#include "conductor/front_private.h"

static struct metric *of_model(struct metric_family *family, const char *model)
{
	return metric_series(family, "model_name=\"%s\",engine=\"cluster\"", model);
}

static struct metric *finished(struct metric_family *family, const char *model, const char *reason)
{
	return metric_series(family, "model_name=\"%s\",engine=\"cluster\",finished_reason=\"%s\"",
			     model, reason);
}

static struct metric_family *seconds(struct metrics *m, const char *name, const char *help)
{
	return metrics_histogram(m, name, help, metrics_bounds_latency, 21);
}

static struct metric_family *tokens(struct metrics *m, const char *name, const char *help)
{
	return metrics_histogram(m, name, help, metrics_bounds_tokens, 20);
}

int front_metrics_init(struct fronts *fronts)
{
	struct metrics *m = fronts->bridge->metrics;
	const struct fronts_config *config = fronts->config;
	static const double bounds_n[] = { 1, 2, 5, 10, 20 };
	fronts->metrics = calloc(config->model_count, sizeof *fronts->metrics);
	if (!fronts->metrics)
		return -1;
	struct metric_family *ttft = metrics_histogram(m, "vllm:time_to_first_token_seconds",
						       "From arrival to the first token.",
						       metrics_bounds_ttft, 22);
	struct metric_family *itl = metrics_histogram(m, "vllm:inter_token_latency_seconds",
						      "Between two tokens of a choice.",
						      metrics_bounds_itl, 19);
	struct metric_family *tpot = metrics_histogram(
		m, "vllm:request_time_per_output_token_seconds",
		"Mean time of a token after the first, by request.", metrics_bounds_itl, 19);
	struct metric_family *e2e = seconds(m, "vllm:e2e_request_latency_seconds",
					    "From arrival to the last token.");
	struct metric_family *decode = seconds(m, "vllm:request_decode_time_seconds",
					       "From the first to the last token.");
	struct metric_family *prompt = metrics_counter(m, "vllm:prompt_tokens",
						       "Prompt tokens of started requests.");
	struct metric_family *generation = metrics_counter(m, "vllm:generation_tokens",
							   "Tokens generated.");
	struct metric_family *cached = metrics_counter(m, "baton_cached_prompt_tokens",
						       "Prompt tokens whose KV was cached.");
	struct metric_family *request_prompt = tokens(m, "vllm:request_prompt_tokens",
						      "Prompt tokens, by finished request.");
	struct metric_family *request_generation = tokens(m, "vllm:request_generation_tokens",
							  "Generated tokens, by finished request.");
	struct metric_family *max_generation =
		tokens(m, "vllm:request_max_num_generation_tokens",
		       "Generated tokens of each choice of finished requests.");
	struct metric_family *max_tokens = tokens(m, "vllm:request_params_max_tokens",
						  "max_tokens, by request.");
	struct metric_family *n = metrics_histogram(m, "vllm:request_params_n", "n, by request.",
						    bounds_n, 5);
	struct metric_family *success = metrics_counter(m, "vllm:request_success",
							"Requests that ended, by reason.");
	fronts->http_requests = metrics_counter(m, "http_requests", "HTTP answers.");
	fronts->http_seconds = seconds(m, "http_request_duration_seconds",
				       "From a request's arrival to the end of its answer.");
	for (uint32_t i = 0; i < config->model_count; i++) {
		char model[256];
		metrics_escape(config->models[i].names[0], model, sizeof model);
		fronts->metrics[i] = (struct front_metrics){
			.ttft = of_model(ttft, model),
			.itl = of_model(itl, model),
			.tpot = of_model(tpot, model),
			.e2e = of_model(e2e, model),
			.decode_time = of_model(decode, model),
			.prompt_tokens = of_model(prompt, model),
			.cached_tokens = of_model(cached, model),
			.generation_tokens = of_model(generation, model),
			.request_prompt = of_model(request_prompt, model),
			.request_generation = of_model(request_generation, model),
			.request_max_generation = of_model(max_generation, model),
			.request_max_tokens = of_model(max_tokens, model),
			.request_n = of_model(n, model),
			.success_stop = finished(success, model, "stop"),
			.success_length = finished(success, model, "length"),
			.success_abort = finished(success, model, "abort"),
			.success_error = finished(success, model, "error"),
		};
	}
	return 0;
}

void front_metrics_fini(struct fronts *fronts)
{
	free(fronts->metrics);
	fronts->metrics = NULL;
}
