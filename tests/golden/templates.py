#!/usr/bin/env python3
"""Writes templates.jsonl: what Jinja2 itself makes of templates, for test_template.c.

    pip install jinja2 && python3 tests/golden/templates.py > tests/golden/templates.jsonl

A row: template, variables, and text, or error true. The environment is the one that chat
templates are written for: sandboxed, trim_blocks, lstrip_blocks, loop controls, a plain tojson.
"""
import json
import sys

from jinja2.exceptions import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment


def raise_exception(message):
    raise TemplateError(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators,
                      sort_keys=sort_keys)


environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                            extensions=["jinja2.ext.loopcontrols"])
environment.filters["tojson"] = tojson
environment.globals["raise_exception"] = raise_exception

CHAT = [
    {"role": "system", "content": "  Be brief. \n"},
    {"role": "user", "content": "Hi <|im_end|> \u4f60\u597d \U0001f600"},
    {"role": "assistant", "content": "<think>\nhm\n</think>\n\nHello."},
    {"role": "user", "content": [{"type": "text", "text": "two"}, {"type": "text", "text": "parts"}]},
    {"role": "assistant", "content": "", "tool_calls": [
        {"type": "function", "function": {"name": "add", "arguments": {"a": 1, "b": [2.5, None, True]}}}]},
    {"role": "tool", "content": "3.5", "name": "add"},
]
TOOLS = [{"type": "function", "function": {"name": "add", "description": "Adds \"two\" numbers.\n",
          "parameters": {"type": "object", "properties": {"a": {"type": "number"}}, "required": ["a"]}}}]
VARIABLES = {"messages": CHAT, "tools": TOOLS, "bos_token": "<s>", "eos_token": "</s>",
             "add_generation_prompt": True, "empty": [], "n": 7, "x": 2.5, "word": "Straw",
             "nothing": None, "yes": True, "table": {"b": 2, "a": 1, "C": 3},
             "rows": [{"k": "b", "v": 2}, {"k": "a", "v": 1}, {"k": "b", "v": 3}, {"k": "c"}]}

EXPRESSIONS = r"""
1 + 2 * 3
7 // 2 ~ '|' ~ -7 // 2 ~ '|' ~ 7 % 3 ~ '|' ~ -7 % 3 ~ '|' ~ 7 / 2
2 ** 3 ** 2
-2 ** 2
1 + 2 ~ 3 + 4
'a' 'b' "c"
1.0
1e20
1.5e-7
100000.25 + 0.1
0.1 + 0.2
1_000
x * n
x // 1
x % 2
n > 3 and n < 9 or false
n and word
nothing or 'other'
not n
not not n
not n is defined
1 < 2 < 3
1 < 3 < 2
n == 7.0
yes == 1
'a' < 'b'
'ab' in 'cabd'
7 in [1, 7]
'a' in table
'z' not in table
'yes' if n > 3 else 'no'
'yes' if n > 8
('a' if n > 8 else 'b') ~ 'c'
[1, 'two', none, true, 2.5, {'k': 'v'}, (1,), ()]
{'a': 1, 'b': [1, 2]}
table
table.a
table['a']
table.items() | list
table.keys() | list
table.values() | list
table.get('a')
table.get('z')
table.get('z', 9)
table | items | list
table | dictsort
table | length
messages | length
messages[0].role
messages[0]['role']
messages[-1].role
messages[1:3] | map(attribute='role') | join(',')
messages[::-1] | map(attribute='role') | list
messages[:2] | map(attribute='role') | list
messages[-2:] | map(attribute='role') | list
messages[5:2:-1] | map(attribute='role') | list
messages[10:] | list
word[1:3]
word[::-1]
word[-1]
word[99]
word.upper() + word.lower()
word | upper | lower
'hello wORLD' | title
'hello wORLD' | capitalize
'  a b  ' | trim
'xxaxx'.strip('x')
'  a'.lstrip() ~ '|'
'a  '.rstrip() ~ '|'
'\u00a0a\u2003'.strip() ~ '|'
'a,b,,c'.split(',')
'a,b,,c'.split(',', 1)
' a  b c '.split()
' a  b c '.split(none, 1)
'a,b,c'.rsplit(',', 1)
'a\nb\r\nc'.splitlines()
'abcabc'.replace('b', 'XX')
'abcabc'.replace('b', 'XX', 1)
'abcabc' | replace('a', '')
'abc'.startswith('ab') ~ 'abc'.endswith(('x', 'c'))
'abc'.find('c') ~ 'abc'.find('x') ~ 'abcb'.rfind('b')
'abcb'.count('b')
'12'.isdigit() ~ '1a'.isdigit()
'-'.join(['a', 'b'])
'abc'.removeprefix('a') ~ 'abc'.removesuffix('c')
'\t\x41\u00e9\\n\q\''
'ab' * 3
'ab' ~ 3 ~ none ~ true
[1] + [2, 3]
[3, 1, 2] | sort
[3, 1, 2] | sort(reverse=true)
['b', 'A', 'c'] | sort
['b', 'A', 'c'] | sort(case_sensitive=true)
rows | sort(attribute='k') | map(attribute='v', default=0) | list
rows | selectattr('v', 'defined') | map(attribute='v') | list
rows | selectattr('k', 'equalto', 'b') | list | length
rows | rejectattr('k', 'eq', 'b') | map(attribute='k') | list
rows | selectattr('v') | list | length
[1, 2, 3, 4] | select('even') | list
[1, 2, 3, 4] | reject('odd') | list
[0, 1, '', 'a'] | select | list
[1, 2, 3] | sum
rows | selectattr('v', 'defined') | sum(attribute='v')
[3, 1, 2] | min ~ [3, 1, 2] | max
[1, 1, 2] | unique | list
[1, 2] | first ~ [1, 2] | last
[] | first
'abc' | first ~ 'abc' | last
'abc' | list
'abc' | reverse
[1, 2] | reverse | list
[1, 2, 3] | join('-')
[1, none, 'a'] | join
rows | join(',', attribute='k')
'a<b>&"c"' | escape
'a' | safe
'12' | int + 1
'1.5' | float
'x' | int(9)
'3.7' | int
x | int
3.14159 | round(2)
2.5 | round
(-3) | abs
5 | string + 'a'
missing | default('d')
missing | d('d')
'' | default('d')
'' | default('d', true)
none | default('d', boolean=true)
missing is defined
missing is undefined
nothing is none
nothing is not none
word is string and n is number and n is integer and x is float
table is mapping and [1] is sequence and 'a' is iterable
yes is boolean and yes is true and n is not true
[1] is iterable and n is not iterable
n is odd and 4 is even and 9 is divisibleby 3
n is eq 7 and n is ne 8 and n is gt 6 and n is le 7
1 is in [1, 2]
'ab' is lower and 'AB' is upper
missing
missing ~ 'a'
missing == missing
missing | length
missing.a
missing + 1
missing()
none.a
n.a
1 + 'a'
1 / 0
'a' < 1
raise_exception('no')
tools | tojson
tools[0] | tojson(indent=2)
{'b': 1, 'a': [], 'c': {}} | tojson(indent=4)
{'b': 1, 'a': 'é"\\/\n\u0001'} | tojson(sort_keys=true)
"it's" | tojson
["it's", 'say "x"', 'both \' "', 'tab\t\x7f\x01é']
messages[4].tool_calls[0].function.arguments | tojson
range(3) | list
range(1, 4) | list
range(5, 0, -2) | list
range(0) | list
range(200000) | list
dict(a=1, b=2)
namespace(a=1).a
messages | map(attribute='content') | first | trim
messages | map(attribute='role') | map('upper') | join(' ')
(1, 2)[1]
[[1, 2], [3]][0][1]
{'a': {'b': 3}}.a.b
messages.0.role
'%s' | length
"a\
b"
'a' if true else 'b' if false else 'c'
1 if false
3 not in [1, 2] and not 1 in [2]
[1,2,3][:-1]
'äöü'[1]
'äöü' | length
loop is defined
x is sameas x
'line1\nline2\n\nline4' | indent(2)
'line1\nline2' | indent(2, true)
"a" ~ -1
-x
+n
n|string|length
""".strip("\n").split("\n")

BLOCKS = [
    "{% for m in messages %}{{ m.role }},{% endfor %}",
    "{% for i in [1,2,3] %}{{ loop.index }}{{ loop.index0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.revindex }}{{ loop.revindex0 }} {% endfor %}",
    "{% for i in [1,2,3] %}{{ loop.previtem }}<{{ i }}>{{ loop.nextitem }};{% endfor %}",
    "{% for i in empty %}x{% else %}none{% endfor %}",
    "{% for i in [1,2,3,4] if i is even %}{{ loop.index }}:{{ i }}{% if not loop.last %}, {% endif %}{% endfor %}",
    "{% for k, v in table.items() %}{{ k }}={{ v }};{% endfor %}",
    "{% for k, v in table|dictsort %}{{ k }}={{ v }};{% endfor %}",
    "{% for k in table %}{{ k }}{% endfor %}",
    "{% for c in 'héy' %}[{{ c }}]{% endfor %}",
    "{% for i in range(3) %}{% for j in range(2) %}{{ loop.depth }}{{ i }}{{ j }} {% endfor %}{% endfor %}",
    "{% for i in [1,2,3,4] %}{% if i == 2 %}{% continue %}{% endif %}{% if i == 4 %}{% break %}{% endif %}{{ i }}{% endfor %}",
    "{% for i in [1,1,2] %}{% if loop.changed(i) %}{{ i }}{% endif %}{{ loop.cycle('a','b') }}{% endfor %}",
    "{% for i in 5 %}{% endfor %}",
    "{% for a, b in [[1,2],[3,4]] %}{{ a }}{{ b }}{% endfor %}",
    "{% for a, b in [[1,2,3]] %}{% endfor %}",
    "{% for x in missing %}a{% else %}b{% endfor %}",
    "{% for i in [1,2] %}{% set seen = i %}{% endfor %}{{ seen }}",
    "{% set ns = namespace(found=false, n=0) %}{% for i in [1,2,3] %}{% set ns.n = ns.n + i %}{% if i == 2 %}{% set ns.found = true %}{% endif %}{% endfor %}{{ ns.found }} {{ ns.n }}",
    "{% if n == 1 %}a{% elif n == 7 %}b{% elif n == 8 %}c{% else %}d{% endif %}",
    "{% if false %}a{% elif false %}b{% else %}d{% endif %}",
    "{% if true %}{% set a = 1 %}{% endif %}{{ a }}",
    "{% set a, b = 1, 2 %}{{ a + b }}",
    "{% set a = 1, 2 %}{{ a }}",
    "{% set text %}  x {{ n }} y{% endset %}[{{ text }}]",
    "{% set text | trim | upper %}  x y {% endset %}[{{ text }}]",
    "{% set table.z = 1 %}",
    "{% macro f(a, b='x', c=n) %}{{ a }}-{{ b }}-{{ c }}{% endmacro %}{{ f(1) }}|{{ f(1, 2) }}|{{ f(c=3, a=4) }}",
    "{% macro f(a) %}{{ a }}{% endmacro %}{{ f(1, 2) }}",
    "{% macro f(a) %}{{ a }}{% endmacro %}{{ f(z=2) }}",
    "{% macro f(a) %}{{ a is defined }}{% endmacro %}{{ f() }}",
    "{% macro fact(k) %}{% if k <= 1 %}1{% else %}{{ k * (fact(k - 1) | int) }}{% endif %}{% endmacro %}{{ fact(5) }}",
    "{% macro wrap(tag) %}<{{ tag }}>{{ caller() }}</{{ tag }}>{% endmacro %}{% call wrap('b') %}in {{ n }}{% endcall %}",
    "{% macro each(list) %}{% for i in list %}{{ caller(i) }};{% endfor %}{% endmacro %}{% call(x) each([1,2]) %}<{{ x }}>{% endcall %}",
    "{% filter upper %}abc {{ word }}{% endfilter %}",
    "{% filter replace('a', 'b') | upper %}banana{% endfilter %}",
    "{% raw %}{{ not }} {% this %}{% endraw %}!",
    "a {%- if true -%} b {%- endif -%} c",
    "a\n  {% if true %}\n  b\n  {% endif %}\nc\n",
    "a\n  {%+ if true %}\n  b\n  {% endif +%}\nc\n",
    "a  {% if true %}b{% endif %}  c",
    "  {# note #}  x\n{# note #}\ny",
    "  {#- note -#}  x",
    "a\n\n{{- n -}}\n\nb",
    "a\n{{ n }}\nb\n\n",
    "\n{{ n }}\n",
    "x\r\ny\r\n",
    "{{ {'a': {'b': 1}}['a']['b'] }}",
    "{{ {'a': {'b': 1}} }}",
    "{% if true %}   \n  {% endif %}|",
    "{% for i in [1,2] -%}\n  {{ i }}\n{%- endfor %}|",
    "   {%- if true %} a{% endif %}",
    "{% if true %}\n{% if true %}\nx\n{% endif %}\n{% endif %}\ny",
    "{{ n }}\n{% if true %}\n{{ n }}\n{% endif %}",
    "{% set x = [] %}{% set y = x + [1] %}{{ y }}{{ x }}",
    "{{ [].append(1) }}",
    "{% unknown %}",
    "{{ a",
    "{% if true %}",
    "{% endif %}",
    "{{ 1 | nofilter }}",
    "{{ 1 is notest }}",
    "{% for i in [1] %}{{ i }",
    "{{ 'open }}",
    "{{ ) }}",
    "{% break %}",
    "{{ f(a=1, 2) }}",
    "plain } text { with % signs %} and # }} too",
    "{%- for m in messages -%}{%- if m.content is string -%}{{ m.content | trim }}{%- else -%}{%- for p in m.content -%}{%- if p.type == 'text' -%}{{ p.text }}{%- endif -%}{%- endfor -%}{%- endif -%}{%- endfor -%}",
    "{%- set ns = namespace(last=messages|length - 1, multi=true) %}\n{%- for m in messages[::-1] %}\n    {%- set i = (messages|length - 1) - loop.index0 %}\n    {%- if ns.multi and m.role == 'user' and m.content is string and not(m.content.startswith('<tool>') and m.content.endswith('</tool>')) %}\n        {%- set ns.multi = false %}\n        {%- set ns.last = i %}\n    {%- endif %}\n{%- endfor %}\n{{ ns.last }}",
    "{%- for m in messages %}\n{%- if '</think>' in m.content %}\n{%- set reason = m.content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}\n{%- set content = m.content.split('</think>')[-1].lstrip('\\n') %}\n[{{ reason }}|{{ content }}]\n{%- endif %}\n{%- endfor %}",
    "{{ bos_token }}{% for m in messages %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 1) and m['role'] not in ['system', 'tool', 'assistant'] %}{{ raise_exception('roles must alternate') }}{% endif %}{{ '[' + m['role'] + '] ' }}{% endfor %}{{ eos_token }}",
    "{% for m in messages %}{% if loop.index0 == 1 %}{{ raise_exception('second: ' ~ m.role) }}{% endif %}{% endfor %}",
    "{%- if tools %}\n{{- '# Tools\\n' }}\n{%- for tool in tools %}\n{{- '\\n' }}{{- tool | tojson }}\n{%- endfor %}\n{%- endif %}",
    "{%- for m in messages if m.tool_calls %}\n{%- for call in m.tool_calls %}\n{%- set call = call.function if call.function else call %}\n{{- '{\"name\": \"' }}{{- call.name }}{{- '\", \"arguments\": ' }}{{- call.arguments if call.arguments is string else call.arguments | tojson }}{{- '}' }}\n{%- endfor %}\n{%- endfor %}",
    "{%- if messages[0]['role'] == 'system' %}{%- set system = messages[0]['content'] | trim %}{%- set rest = messages[1:] %}{%- else %}{%- set system = '' %}{%- set rest = messages %}{%- endif %}{{ system }}/{{ rest | length }}",
    "{%- if not date_string is defined %}{%- set date_string = '26 Jul 2024' %}{%- endif %}{{ date_string }}",
]


def rows():
    for expression in EXPRESSIONS:
        yield "{{ " + expression.replace("\\\n", "\n") + " }}"
    yield from BLOCKS


def main():
    for template in rows():
        row = {"template": template, "variables": VARIABLES}
        try:
            row["text"] = environment.from_string(template).render(**VARIABLES)
        except Exception as error:  # whatever Jinja2 raises: the template or messages are refused
            row["error"] = True
            print(template, "->", repr(error), file=sys.stderr)
        del row["variables"]
        print(json.dumps(row))


if __name__ == "__main__":
    print(json.dumps({"variables": VARIABLES}))
    main()
