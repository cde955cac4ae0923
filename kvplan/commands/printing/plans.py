"""What ``kvplan plan`` prints: a table, one document, rows, or manifests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kvplan.commands.options.extras import need_extra
from kvplan.commands.printing.queues import intervals_text, print_steps, queues_text, server_text, span, tail_text
from kvplan.commands.printing.render import print_csv, print_json, print_sentence, print_table, say
from kvplan.errors import KvplanError
from kvplan.estimate.speed.latency import Range
from kvplan.planner.answer.document import (
    adapter_notes,
    bridge_notes,
    calibration_notes,
    load_assumption,
    network_notes,
    plan_document,
    plan_row,
)
from kvplan.planner.answer.drafting import drafting_sentence
from kvplan.planner.answer.queues import explained_steps, first_within_tails, queues_of
from kvplan.planner.answer.sharing import hits_sentence
from kvplan.planner.choices.deployment import Deployment
from kvplan.planner.choices.slo_check import missed_by_tail
from kvplan.planner.launch.engines import command_note, launch_commands
from kvplan.planner.launch.manifests import compose_file, kubernetes_manifests
from kvplan.planner.launch.replicas import balancer_command, vllm_processes
from kvplan.planner.question.request import PlanRequest
from kvplan.planner.search.fixes import Fix
from kvplan.planner.search.left_out import left_out
from kvplan.planner.search.plan import Alternative, Plan
from kvplan.planner.search.rule_of_thumb import RuleOfThumb, users_by_rule
from kvplan.units import format_bytes, format_gib, plural

_SHOWN = 10
_MOST_PROCESSES = 8
_MOST_NAMED = 6
"""GPUs that somebody names, of each of which the answer says what became of it."""


def print_answer(found: Plan, fix: Fix | None, output_format: str, plot: Path | None, *, explain: bool = False) -> None:
    """The whole answer in ``output_format``. KvplanError, with the fix as its hint, where nothing serves the load."""
    if output_format == "json":
        print_json(plan_document(found, fix))
    elif output_format == "csv":
        print_csv([plan_row(deployment, found.spec.served_id) for deployment in found.deployments])
    elif output_format in _MANIFESTS and found.deployments:
        say(_MANIFESTS[output_format](found.deployments[0], found.spec.served_id), end="")
    else:
        print_plan(found)
        if explain and found.deployments:
            print_steps(found.deployments[0].choice.name, explained_steps(found.deployments[0], found.workload))
    if plot is not None and found.deployments:
        need_extra("plan --plot", "report")
        from kvplan.planner.answer.picture import draw_plan

        draw_plan(found, plot)
    if not found.deployments:
        raise nothing_serves(found, fix)


_MANIFESTS = {"compose": compose_file, "kubernetes": kubernetes_manifests}


def nothing_serves(found: Plan, fix: Fix | None) -> KvplanError:
    """What came nearest, and the change after which something serves."""
    hint = f"no single change serves it: loosen several of {', '.join(_limits(found.request))}, or take a smaller model"
    if fix is not None:
        slo = fix.deployment.slo
        hint = f"{fix.sentence}: then {fix.deployment.name} serves it" + (
            "" if slo.sure else f" (likely {100 * slo.share:.0f} %)"
        )
    if found.too_dear is not None:
        return KvplanError(f"Nothing within ${found.request.usd_per_hour:,.2f} per hour serves this load.", hint=hint)
    miss = found.nearest_miss
    if miss is None:
        return KvplanError("No deployment serves this load.", hint=hint)
    lacks = f" ({format_bytes(miss.missing_bytes)} missing on each GPU)" if miss.missing_bytes else ""
    limit = "at most " + plural(found.request.max_gpus, "GPU")
    return KvplanError(
        f"No deployment of {limit} serves this load. Nearest: {miss.name}{lacks}. {miss.sentence}", hint=hint
    )


def _limits(request: PlanRequest) -> list[str]:
    """Options that may stand in the way."""
    settings = request.settings
    asked = {
        "--budget": request.usd_per_hour is not None,
        "--slo": not request.slo.is_empty,
        "--gpu-memory-utilization": settings.gpu_memory_utilization is not None,
        "--max-num-batched-tokens": settings.max_num_batched_tokens is not None,
    }
    return ["--gpu", "--max-gpus", *(option for option, is_asked in asked.items() if is_asked)]


_HEAD = (
    "deployment",
    "weights",
    "KV",
    "weights GiB",
    "KV pool GiB",
    "at ctx-avg",
    "at ctx-max",
    "by rule",
    "TTFT ms",
    "TPOT ms",
    "tokens/s",
    "$/h",
    "$/Mtok",
    "serves",
    "limit",
)
_TEXT_COLUMNS = (0, 1, 2, 13, 14)
_PARTS = ("TTFT ms", "$/h")
"""Where the table is cut on a narrow terminal: what fits, how fast it is, and what it costs and serves."""


def print_plan(found: Plan) -> None:
    workload = found.workload
    who = plural(workload.num_users, "user") if workload.num_users else f"{workload.requests_per_second:g} requests/s"
    lengths = f"{plural(workload.average_context, 'token')} on average, {workload.longest_context:,} at most"
    requests = f"prompts {workload.input_tokens:,}, answers {workload.output_tokens:,}"
    print_sentence(f"{found.spec.title}: {who}, {lengths}; {requests}", indent="", further="  ")
    for note in workload.assumptions:
        print_sentence(note)
    if found.rule is not None:
        total = found.rule.total_bytes / 1e9
        print_sentence(f"rule of thumb (weights + 1.2 GB x users + 5 GB): {total:,.0f} GB in all")
    if found.deployments:
        say()
        _print_deployments(_shown(found), found.rule)
        left = len(found.deployments) - len(_shown(found))
        if left > 0:
            say(f"  ... and {left} more (--json lists all)")
    _print_alternatives(found.alternatives, found.rule, bool(found.deployments))
    if not found.deployments:
        return
    if len(found.request.gpus) <= _MOST_NAMED:
        for gpu_id, sentence in left_out(found).items():
            print_sentence(f"not on {gpu_id}: {sentence}")
    shown = [*_shown(found), *(each.deployment for each in found.alternatives)]
    say()
    print_sentence(f"{_origin_sentence(shown)} {load_assumption(found)}")
    if any(each.served.speed.origin in ("roofline", "kernels", "scaled") for each in shown):
        print_sentence(UNSURE)
    if not found.request.slo.is_empty:
        print_sentence(f"SLO met: {' and '.join(bound.text for bound in found.request.slo.bounds())}.")
    if any(not deployment.slo.sure for deployment in shown):
        print_sentence(
            "likely: the share of the predicted speeds and KV pools at which it serves the load within its bounds."
        )
    for note in [*adapter_notes(found), *bridge_notes(shown), *network_notes(shown), *calibration_notes(shown)]:
        print_sentence(note)
    _print_best(found.deployments[0], found)


def _shown(found: Plan) -> list[Deployment]:
    """The first ten, of each number of a GPU in the same formats the best layout alone."""
    firsts: dict[tuple[object, ...], Deployment] = {}
    for each in found.deployments:
        firsts.setdefault((each.choice.gpu.id, each.num_gpus, each.choice.formats, each.slo.sure), each)
    return list(firsts.values())[:_SHOWN]


def _print_deployments(deployments: Sequence[Deployment], rule: RuleOfThumb | None) -> None:
    rows = [_row(deployment, rule) for deployment in deployments]
    print_table(None, _HEAD, rows, text_columns=_TEXT_COLUMNS, parts=_PARTS)


def _print_alternatives(alternatives: Sequence[Alternative], rule: RuleOfThumb | None, has_answer: bool) -> None:
    if not alternatives:
        return
    what = "For less, in other formats" if has_answer else "In other formats it would be served"
    say(f"\n{what}:")
    _print_deployments([each.deployment for each in alternatives], rule)
    for caveat in dict.fromkeys(text for each in alternatives for text in each.caveats):
        print_sentence(caveat)


UNSURE = (
    "Of published measurements of whole servers 76 % of TPOT, 82 % of tokens/s and 57 % of TTFT lie within such "
    "ranges; those of the best deployment's line with queues hold 9 in 10 (docs/accuracy.md)."
)
"""Of speeds that nobody measured: tools/score_published_speeds.py, column 30%."""


def _origin_sentence(shown: Sequence[Deployment]) -> str:
    """Where the shown speeds come from."""
    origins = dict.fromkeys(deployment.served.speed.origin for deployment in shown)
    words = {
        "roofline": "roofline estimates",
        "measured": "based on measurements of this model",
        "calibrated": "based on measurements of another model or dtype",
        "kernels": "based on measured kernels",
        "scaled": "based on kernels measured on a GPU of the same kind",
    }
    if len(origins) == 1:
        return f"TTFT, TPOT and tokens/s are {words[next(iter(origins))]}."
    return "TTFT, TPOT and tokens/s are roofline estimates unless the notes name a measurement."


def _print_best(best: Deployment, plan: Plan) -> None:
    model_id = plan.spec.served_id
    say()
    print_sentence(f"best: {_settings_line(best)}", indent="", further="  ")
    queues = queues_of(best, plan.workload)
    if queues is not None:
        print_sentence(f"with queues, each replica: {queues_text(queues)}{intervals_text(queues)}")
        beyond = missed_by_tail(plan.request.slo, queues.figures)
        if beyond:
            keeps = first_within_tails(plan.deployments, plan.workload, plan.request.slo)
            instead = "" if keeps is None else f"; {keeps.name} keeps it for 99 in 100 requests"
            print_sentence(f"averages are within --slo; beyond it {tail_text(beyond)}{instead}")
    hits = hits_sentence(best)
    if hits is not None:
        print_sentence(f"prefix cache: {hits}")
    drafts = drafting_sentence(best)
    if drafts is not None:
        print_sentence(f"drafter: {drafts}")
    server = server_text(best.served.server_share, best.speed_model.front_end.servers)
    if server is not None:
        print_sentence(f"server: {server}")
    price = best.choice.gpu.price
    if price is not None:
        print_sentence(f"price: {price.source}")
    commands = launch_commands(best, model_id)
    for engine, command in commands.items():
        say(f"  {engine + ':':14s}{command}")
    note = command_note(plan.spec)
    if note is not None:
        print_sentence(note)
    processes = vllm_processes(best, model_id)
    if len(processes) == 1 or "vllm" not in commands:
        return
    every = "both" if len(processes) == 2 else f"all {len(processes)}"
    say(f"\n  {every} processes (vllm):")
    for process in processes[:_MOST_PROCESSES]:
        node = f"node {process.node}: " if best.num_nodes > 1 else ""
        say(f"    {node}{process.line}")
    if len(processes) > _MOST_PROCESSES:
        say(f"    ... and {len(processes) - _MOST_PROCESSES} more (--json lists all, --format kubernetes starts them)")
    balancer = balancer_command(best, model_id)
    if balancer is not None and len(processes) > _MOST_PROCESSES:
        say("  before them: a balancer that knows all of them (--json has its command)")
    elif balancer is not None:
        say(f"  before them: {balancer}")


def _settings_line(deployment: Deployment) -> str:
    settings = deployment.prediction.settings.serving
    block = "" if deployment.choice.weights.spec.has_only_states else f", block_size {deployment.prediction.block_size}"
    spare = f" ({deployment.num_spare} of {deployment.replicas + deployment.num_spare} replicas spare)"
    return (
        f"{deployment.name}{spare if deployment.num_spare else ''}, "
        f"gpu_memory_utilization {settings.gpu_memory_utilization}, "
        f"max_num_seqs {settings.max_num_seqs}, max_model_len {settings.max_model_len}, "
        f"max_num_batched_tokens {settings.max_num_batched_tokens}{block}"
    )


def _row(deployment: Deployment, rule: RuleOfThumb | None) -> tuple[str, ...]:
    rank, speed, capacity = deployment.prediction.rank, deployment.served.speed, deployment.capacity
    throughput, cost = deployment.output_tokens_per_second, deployment.usd_per_million_output_tokens()
    return (
        deployment.name,
        deployment.weights_name,
        deployment.prediction.settings.serving.kv_cache_dtype,
        format_gib(rank.weight_bytes),
        format_gib(max(rank.available_kv_bytes, 0)),
        f"{capacity.average_sequences * deployment.replicas:,}",
        f"{capacity.worst_sequences * deployment.replicas:,}",
        "-" if rule is None else f"{users_by_rule(rule, deployment):,}",
        _milliseconds(speed.ttft_seconds),
        _milliseconds(speed.tpot_seconds),
        span(*throughput, ",.0f"),
        "-" if deployment.usd_per_hour is None else f"{deployment.usd_per_hour:,.2f}",
        "-" if cost is None else span(*cost, ",.2f"),
        _serves_word(deployment),
        deployment.limit,
    )


def _serves_word(deployment: Deployment) -> str:
    """met or yes: over the whole range of speeds; likely: over so much of it."""
    if not deployment.slo.sure:
        return f"likely {100 * deployment.slo.share:.0f} %"
    return "SLO met" if deployment.slo.num_bounds else "yes"


def _milliseconds(found: Range) -> str:
    if not found.is_bounded:
        return f"{span(found.low * 1000, found.low * 1000, ',.0f', least=found.least * 1000)} and up"
    return span(found.low * 1000, found.high * 1000, ",.0f", least=found.least * 1000)
