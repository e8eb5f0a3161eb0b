{{/* The text of a manifest that kustomize uses too: list of the root and the path below files/. */}}
{{- define "refvol.file" -}}
{{- $root := index . 0 }}{{ $path := printf "files/%s" (index . 1) }}
{{- $root.Files.Get $path | required (printf "the chart lacks %s: deploy/charts/refvol/files has symbolic links, which a tool left out: use the packaged chart" $path) }}
{{- end }}

{{/* An object in the release's namespace, with the labels of all objects: list of the root and the object. */}}
{{- define "refvol.object" -}}
{{- $root := index . 0 }}{{ $object := index . 1 }}
{{- with $object.metadata }}
{{- if .namespace }}{{ $_ := set . "namespace" $root.Release.Namespace }}{{ end }}
{{- $_ := set . "labels" (merge (dict) .labels $root.Values.commonLabels) }}
{{- end }}
---
{{ toYaml $object }}
{{ end }}

{{/* A manifest that needs no other change: list of the root and the path below files/. */}}
{{- define "refvol.manifest" -}}
{{- include "refvol.object" (list (index . 0) (include "refvol.file" . | fromYaml)) }}
{{- end }}

{{- define "refvol.image" -}}
{{- with .Values.image }}
{{- printf "%s/%s" (trimSuffix "/" .registry) .repository }}
{{- if .digest }}@{{ .digest }}{{ else }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}
{{- end }}
{{- end }}

{{/* The image of kubectl refvol. It is beside the plugin's, of the same tag, unless the values say another. */}}
{{- define "refvol.uninstallCheckImage" -}}
{{- $own := .Values.uninstallCheck.image }}
{{- with .Values.image }}
{{- printf "%s/%s" (trimSuffix "/" .registry) ($own.repository | default (regexReplaceAll "[^/]+$" .repository "kubectl-refvol")) }}
{{- if $own.digest }}@{{ $own.digest }}{{ else }}:{{ $own.tag | default .tag | default $.Chart.AppVersion }}{{ end }}
{{- end }}
{{- end }}

{{/* Fails for values that exclude each other. The schema refuses what is wrong by itself. */}}
{{- define "refvol.validate" -}}
{{- if and .Values.crossNamespace (eq .Values.identity "node") }}
{{- fail "crossNamespace: Forbidden: with identity node: a node may read only what its own pods name: set identity to pod or plugin, or leave crossNamespace out" }}
{{- end }}
{{- $values := dict "identity" "identity" "cross-namespace" "crossNamespace" "change-detection" "changeDetection"
  "startup-taint" "startupTaint.enabled" "kubelet-dir" "kubeletDir" "kubelet-socket-path" "kubeletDir"
  "logging-format" "logFormat" "v" "logLevel" "resync-interval" "resyncInterval" "publish-wait" "publishWait"
  "max-volume-size" "maxVolumeSize" "max-total-size" "maxTotalSize" "max-cached-size" "maxCachedSize" }}
{{- range $i, $arg := .Values.extraArgs }}
{{- $flag := regexFind "^[^=]+" (trimPrefix "--" $arg) }}
{{- with get $values $flag }}
{{- fail (printf "extraArgs[%d]: Forbidden: --%s: set the value %s, which more than the flag depends on" $i $flag .) }}
{{- end }}
{{- if has $flag (list "driver-name" "endpoint" "registration-dir" "node-name" "http-address") }}
{{- fail (printf "extraArgs[%d]: Forbidden: --%s: the chart sets it, and other objects depend on it" $i $flag) }}
{{- end }}
{{- end }}
{{- end }}

{{/* The metadata of what checks that nothing uses the driver before the release is deleted. */}}
{{- define "refvol.uninstallCheck" }}
  name: refvol-uninstall-check
  labels:
    {{- merge (dict "app.kubernetes.io/name" "refvol-uninstall-check") .Values.commonLabels | toYaml | nindent 4 }}
  annotations:
    helm.sh/hook: pre-delete
    # A Job that failed stays for an hour, with its log.
    helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end }}
