{{- define "gnnpipe.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- $full := ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) -}}
{{- $full | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "gnnpipe.serviceAccountName" -}}
{{- .Values.serviceAccount.name | default (include "gnnpipe.fullname" .) -}}
{{- end -}}

{{- /* Labels that select the operator's pods: they may not change between versions. */ -}}
{{- define "gnnpipe.selectorLabels" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: operator
{{- end -}}

{{- define "gnnpipe.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/part-of: gnnpipe
{{ include "gnnpipe.selectorLabels" . }}
{{- end -}}

{{- /* image: a reference from (dict "image" .Values.x "version" .Chart.AppVersion) */ -}}
{{- define "gnnpipe.image" -}}
{{- if .image.digest -}}
{{ .image.repository }}@{{ .image.digest }}
{{- else -}}
{{ .image.repository }}:{{ default .version .image.tag }}
{{- end -}}
{{- end -}}

{{- define "gnnpipe.knowsMonitors" -}}
{{- if .Capabilities.APIVersions.Has "monitoring.coreos.com/v1" -}}yes{{- end -}}
{{- end -}}

{{- /* Which pods are a job's, in any namespace that is watched. */ -}}
{{- define "gnnpipe.workerSelector" -}}
matchExpressions:
  - {key: gnnpipe.io/job, operator: Exists}
{{- end -}}
