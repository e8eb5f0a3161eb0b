{{/* What the plugin refuses when it starts (cmd/refvol-plugin/options.go). A test compares these limits and sentences with the
plugin's own. */}}
{{- define "refvol.validatePlugin" -}}
{{- if and .Values.crossNamespace (eq .Values.identity "node") }}
{{- include "refvol.refuse" (list "crossNamespace" "--cross-namespace: Forbidden: with --identity=node: a node may read only what the specs of its pods name, and these name objects of their own namespaces: set identity to pod or plugin, or leave crossNamespace out") }}
{{- end }}
{{- range $value, $flag := dict "maxVolumeSize" "max-volume-size" "maxTotalSize" "max-total-size" "maxCachedSize" "max-cached-size" }}
{{- with get $.Values $value }}
{{- if eq (include "refvol.bytes" . | float64) 0.0 }}
{{- include "refvol.refuse" (list $value (printf "--%s: Invalid value: %q: must be a positive quantity such as 32Mi" $flag .)) }}
{{- end }}
{{- end }}
{{- end }}
{{- $volume := .Values.maxVolumeSize | default "32Mi" }}{{ $total := .Values.maxTotalSize | default "512Mi" }}
{{- if lt (include "refvol.bytes" $total | float64) (include "refvol.bytes" $volume | float64) }}
{{- include "refvol.refuse" (list "maxTotalSize" (printf "--max-total-size: Invalid value: %q: must not be less than --max-volume-size, which is %s" $total $volume)) }}
{{- end }}
{{- range $value, $flag := dict "resyncInterval" "resync-interval" "defaultSpread" "default-spread" "publishWait" "publish-wait" }}
{{- with get $.Values $value }}
{{- if gt (include "refvol.seconds" . | float64) 9223372036.0 }}
{{- include "refvol.refuse" (list $value (printf "invalid argument %q for \"--%s\" flag: time: invalid duration %q" . $flag .)) }}
{{- end }}
{{- end }}
{{- end }}
{{- with .Values.resyncInterval }}
{{- if eq (include "refvol.seconds" . | float64) 0.0 }}
{{- include "refvol.refuse" (list "resyncInterval" (printf "--resync-interval: Invalid value: %s: must be positive" .)) }}
{{- end }}
{{- end }}
{{- with .Values.defaultSpread }}
{{- $seconds := include "refvol.seconds" . | float64 }}
{{- if and (ne $seconds 0.0) (or (lt $seconds 1.0) (gt $seconds 3600.0)) }}
{{- include "refvol.refuse" (list "defaultSpread" (printf "--default-spread: Invalid value: %s: must be a duration from 1s to 1h, such as 5m, or 0s for none" .)) }}
{{- end }}
{{- end }}
{{- end }}

{{/* Fails with what the plugin would print: list of the value and the sentence. */}}
{{- define "refvol.refuse" -}}
{{- fail (printf "%s: the plugin would not start: %s" (index . 0) (index . 1)) }}
{{- end }}

{{/* A quantity of the schema's form in bytes, rounded up. */}}
{{- define "refvol.bytes" -}}
{{- $units := dict "" 1.0 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "Ki" 1024.0 "Mi" 1048576.0 "Gi" 1073741824.0 "Ti" 1099511627776.0 }}
{{- $number := regexFind "^[0-9.]+" . }}
{{- mulf $number (get $units (trimPrefix $number .)) | ceil }}
{{- end }}

{{/* A duration of the schema's form in seconds. */}}
{{- define "refvol.seconds" -}}
{{- $units := dict "ms" 0.001 "s" 1.0 "m" 60.0 "h" 3600.0 }}{{ $seconds := 0.0 }}
{{- range regexFindAll "[0-9.]+(ms|s|m|h)" . -1 }}
{{- $number := regexFind "^[0-9.]+" . }}
{{- $seconds = addf $seconds (mulf $number (get $units (trimPrefix $number .))) }}
{{- end }}
{{- $seconds }}
{{- end }}
