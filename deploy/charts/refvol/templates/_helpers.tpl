{{/* The text of a manifest that kustomize uses too: list of the root and the path below files/. */}}
{{- define "refvol.file" -}}
{{- $root := index . 0 }}{{ $path := printf "files/%s" (index . 1) }}
{{- $root.Files.Get $path | required (printf "the chart lacks %s: in a checkout run make chart" $path) }}
{{- end }}

{{- define "refvol.namespace" -}}
{{ .Values.namespaceOverride | default .Release.Namespace }}
{{- end }}

{{/* The name of the DaemonSet, and of what belongs to it alone. */}}
{{- define "refvol.fullname" -}}
{{ .Values.fullnameOverride | default .Values.nameOverride | default "refvol-plugin" }}
{{- end }}

{{- define "refvol.serviceAccountName" -}}
{{ .Values.serviceAccount.name | default (include "refvol.fullname" .) }}
{{- end }}

{{/* The labels of an object: list of the root and its own labels, which win. Pods and selectors have the own ones only: a
new version must not change them. */}}
{{- define "refvol.labels" -}}
{{- $root := index . 0 }}
{{- $standard := dict "helm.sh/chart" (printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_" | trunc 63 | trimAll "-_.")
  "app.kubernetes.io/instance" $root.Release.Name
  "app.kubernetes.io/version" $root.Chart.AppVersion
  "app.kubernetes.io/managed-by" $root.Release.Service
  "app.kubernetes.io/part-of" "refvol" }}
{{- merge (dict) (index . 1) $standard $root.Values.commonLabels | toYaml }}
{{- end }}

{{/* An object in the chart's namespace, with the labels of all objects: list of the root and the object. */}}
{{- define "refvol.object" -}}
{{- $root := index . 0 }}{{ $object := index . 1 }}
{{- with $object.metadata }}
{{- if eq .name "refvol-plugin" }}{{ $_ := set . "name" (include "refvol.fullname" $root) }}{{ end }}
{{- if .namespace }}{{ $_ := set . "namespace" (include "refvol.namespace" $root) }}{{ end }}
{{- $_ := set . "labels" (include "refvol.labels" (list $root .labels) | fromYaml) }}
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

{{/* The image of another program: list of the root, the program, and its own values. It is beside the plugin's, of the same tag,
unless these say another. */}}
{{- define "refvol.imageBeside" -}}
{{- $root := index . 0 }}{{ $program := index . 1 }}{{ $own := index . 2 }}
{{- with $root.Values.image }}
{{- printf "%s/%s" (trimSuffix "/" .registry) ($own.repository | default (regexReplaceAll "[^/]+$" .repository $program)) }}
{{- if $own.digest }}@{{ $own.digest }}{{ else }}:{{ $own.tag | default .tag | default $root.Chart.AppVersion }}{{ end }}
{{- end }}
{{- end }}

{{/* The Secrets for pulling images, as a list in JSON: those that a parent chart names for all of its charts, and the chart's own. */}}
{{- define "refvol.imagePullSecrets" -}}
{{- $secrets := list }}
{{- range concat (.Values.global.imagePullSecrets | default list) .Values.imagePullSecrets }}
{{- $secrets = append $secrets (kindIs "string" . | ternary (dict "name" .) .) }}
{{- end }}
{{- $secrets | uniq | toJson }}
{{- end }}

{{- define "refvol.uninstallCheckImage" -}}
{{- include "refvol.imageBeside" (list . "kubectl-refvol" .Values.uninstallCheck.image) }}
{{- end }}

{{/* The bindings of a component for labels of namespaces and pods, without the plugin's namespace: list of the root and the
component. */}}
{{- define "refvol.labelBindings" -}}
{{- $root := index . 0 }}
{{- range $of := list "namespaces" "pods" }}
{{- $binding := include "refvol.file" (list $root (printf "components/%s/binding-%s.yaml" (index $ 1) $of)) | fromYaml }}
{{- range $binding.spec.matchResources.namespaceSelector.matchExpressions }}
{{- if eq .operator "NotIn" }}{{ $_ := set . "values" (list "kube-system" (include "refvol.namespace" $root)) }}{{ end }}
{{- end }}
{{- include "refvol.object" (list $root $binding) }}
{{- end }}
{{- end }}

{{/* Fails if a value needs a newer cluster: list of the root, the value, the version, and what else to do. */}}
{{- define "refvol.needs" -}}
{{- $version := (index . 0).Capabilities.KubeVersion.Version }}
{{- if not (semverCompare (printf ">=%s-0" (index . 2)) $version) }}
{{- fail (printf "%s needs Kubernetes %s or newer, and this cluster has %s: %s" (index . 1) (index . 2) $version (index . 3)) }}
{{- end }}
{{- end }}

{{- define "refvol.needsNewer" -}}
{{- if eq .Values.identity "node" }}
{{- include "refvol.needs" (list . "identity=node" "1.36" "set identity=pod") }}
{{- end }}
{{- range $value, $needed := dict "admission" "1.30" "admissionReadOnly" "1.36" "flowSchema" "1.29" "live" "1.36" "liveNodeSelector" "1.36" "restart" "1.36" "staged" "1.30" "startupTaint" "1.32" }}
{{- if (get $.Values $value).enabled }}
{{- include "refvol.needs" (list $ (printf "%s.enabled=true" $value) $needed "leave it out") }}
{{- end }}
{{- end }}
{{- end }}

{{/* Fails for values that exclude each other, or need a newer cluster. The schema refuses what is wrong by itself. */}}
{{- define "refvol.validate" -}}
{{- include "refvol.needsNewer" . }}
{{- include "refvol.validatePlugin" . }}
{{- if and (not .Values.serviceAccount.create) (not .Values.serviceAccount.name) }}
{{- fail "serviceAccount.name: Required value: with serviceAccount.create=false, the name of your own account" }}
{{- end }}
{{- with .Values.admission.validationActions }}
{{- if and (has "Deny" .) (has "Warn" .) }}
{{- fail (printf "admission.validationActions: Invalid value: %s: must not contain both Deny and Warn, because the user would see the same text twice: the API server refuses both" (toJson .)) }}
{{- end }}
{{- end }}
{{- $values := dict "identity" "identity" "cross-namespace" "crossNamespace" "change-detection" "changeDetection"
  "startup-taint" "startupTaint.enabled" "kubelet-dir" "kubeletDir" "kubelet-socket-path" "kubeletDir"
  "logging-format" "logFormat" "v" "logLevel" "resync-interval" "resyncInterval" "default-spread" "defaultSpread" "publish-wait" "publishWait"
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

{{/* Not empty if the cluster has a kind of the Prometheus operator: list of the root and the kind. */}}
{{- define "refvol.knows" -}}
{{- if (index . 0).Capabilities.APIVersions.Has (printf "monitoring.coreos.com/v1/%s" (index . 1)) }}yes{{ end }}
{{- end }}

{{/* The metadata of what checks that nothing uses the driver before the release is deleted. */}}
{{- define "refvol.uninstallCheck" }}
  name: refvol-uninstall-check
  labels:
    {{- include "refvol.labels" (list . (dict "app.kubernetes.io/name" "refvol-uninstall-check")) | nindent 4 }}
  annotations:
    helm.sh/hook: pre-delete
    # A Job that failed stays for an hour, with its log.
    helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end }}
