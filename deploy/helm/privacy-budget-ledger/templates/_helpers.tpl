{{- define "ledger.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 40 | trimSuffix "-" }}{{ else }}{{ printf "%s-ledger" (.Release.Name | trunc 33 | trimSuffix "-") }}{{ end }}
{{- end }}

{{- define "ledger.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "ledger.labels" -}}
{{ include "ledger.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "ledger.image" -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- end }}

{{- define "ledger.pullSecrets" -}}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- end }}

{{/* The image's user; the group may read the mounted Secret and write to volumes. */}}
{{- define "ledger.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "ledger.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{/* Of a dictionary with the root and a user; the password is in PGPASSWORD, as a URL may reach a log. */}}
{{- define "ledger.databaseUrl" -}}
{{- $database := .root.Values.database -}}
postgresql+psycopg://{{ .user }}@{{ $database.host }}:{{ $database.port }}/{{ $database.name }}?sslmode={{ $database.sslmode }}
{{- if $database.authority.configMap }}&sslrootcert=/authority/{{ $database.authority.key }}{{ end }}
{{- end }}

{{- define "ledger.secretVariable" -}}
valueFrom:
  secretKeyRef:
    name: {{ .name }}
    key: {{ .key }}
{{- end }}

{{/* Bytes: the most that the serving process, its helpers, an experiment and the file systems in memory take. */}}
{{- define "ledger.memory" -}}
{{- $limits := .Values.limits -}}
{{- $mebibyte := 1048576 -}}
{{- $bodies := add (int64 $limits.jsonBytesAtOnce) (int64 $limits.arrowBytesAtOnce) -}}
{{- $serving := add (mul 1024 $mebibyte) $bodies (div $bodies 16) (mul 2 $mebibyte (int64 $limits.connections)) -}}
{{- $helper := add (mul 768 $mebibyte) (mul 4 (int64 $limits.jsonBytes)) -}}
{{- $helpers := ternary (add (mul 256 $mebibyte) (mul (int64 $limits.helperProcesses) $helper)) 0 (gt (int64 $limits.helperProcesses) 0) -}}
{{- add $serving $helpers (int64 $limits.experimentBytes) (mul 65 $mebibyte) -}}
{{- end }}

{{/* Rules for the name service, and for the database. */}}
{{- define "ledger.egress" -}}
- ports:
    - port: 53
      protocol: UDP
    - port: 53
      protocol: TCP
{{- if eq .Values.database.kind "postgresql" }}
- ports:
    - port: {{ .Values.database.port }}
  {{- with .Values.networkPolicy.database }}
  to:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end }}
{{- end }}
