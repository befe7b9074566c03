"""What does a notification say if nobody wrote a text for it?"""

from __future__ import annotations

DEFINITIONS = """
{{ define "subject" }}[{{ .Status | toUpper }}{{ if eq .Status "firing" }}:{{ .Alerts.Firing | len }}{{ end }}] \
{{ .GroupLabels.SortedPairs.Values | join " " }}\
{{ if gt (len .CommonLabels) (len .GroupLabels) }} \
({{ with .CommonLabels.Remove .GroupLabels.Names }}{{ .Values | join " " }}{{ end }}){{ end }}{{ end }}
{{ define "alerts" }}{{ range . }}
{{ range .Labels.SortedPairs }}  {{ .Name }} = {{ .Value }}
{{ end }}{{ range .Annotations.SortedPairs }}  {{ .Name }}: {{ .Value }}
{{ end }}{{ with .GeneratorURL }}  source: {{ . }}
{{ end }}  look closer: harch sentinel alerts show {{ .Fingerprint }}
{{ end }}{{ end }}
"""
EMAIL_SUBJECT = '{{ template "subject" . }}'
EMAIL_TEXT = """\
{{ if .Alerts.Firing }}{{ len .Alerts.Firing }} firing
{{ template "alerts" .Alerts.Firing }}{{ end }}{{ if .Alerts.Resolved }}{{ len .Alerts.Resolved }} resolved
{{ template "alerts" .Alerts.Resolved }}{{ end }}
Sent by SENTINEL of HarchOS, {{ .ExternalURL }}
"""
SLACK = {
    "color": '{{ if eq .Status "firing" }}danger{{ else }}good{{ end }}',
    "title": '{{ template "subject" . }}',
    "title_link": "{{ .ExternalURL }}",
    "fallback": '{{ template "subject" . }} | {{ .ExternalURL }}',
    "username": "HarchOS",
    "text": "{{ range .Alerts }}{{ with .Annotations.summary }}{{ . }}\n{{ end }}{{ end }}",
}
