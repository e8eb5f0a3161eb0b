package check

import (
	"fmt"
	"strings"
	"testing"
)

// podWith returns a Pod with one volume of the driver, called v. The attributes and the containers are YAML in flow style.
func podWith(attributes, containers string) string {
	return `
apiVersion: v1
kind: Pod
metadata: {name: p}
spec:
  initContainers: [{name: init, env: [{name: A, valueFrom: {secretKeyRef: {name: i, key: k}}}]}]
  containers: ` + containers + `
  volumes:
  - {name: v, csi: {driver: csi.refvol.dev, readOnly: true, volumeAttributes: ` + attributes + `}}
`
}

// shown is a volume with what is said of it after the first reference: references, warnings and problems.
type shown struct {
	name, attributes, containers string
	volumes, want                []string
}

// with adds native volumes to the pod.
func (s shown) with(volumes ...string) shown {
	s.volumes = volumes
	return s
}

func TestVolumes(t *testing.T) {
	const (
		v       = "spec.volumes[0].csi.volumeAttributes."
		initRef = "spec.initContainers[0].env[0].valueFrom.secretKeyRef.name"
		initEnv = initRef + ": Secret ns/i k"
		inPlace = "; set writeStrategy: InPlace in the volume's attributes"
	)
	var first32 []string
	for i := range 32 {
		first32 = append(first32, fmt.Sprintf("problem: %ssources[%d]: Invalid value: \"number\": must be a mapping", v, i))
	}
	const one = "[{name: c}]"
	row := func(name, attributes, containers string, want ...string) shown {
		return shown{name, attributes, containers, nil, want}
	}
	for _, test := range []shown{
		row("short form", `{secret: db, optional: "true"}`, one, v+"secret: Secret ns/db optional refvol"),
		row("short form with items", `{configMap: app, items: "[{key: a, path: x}, {key: b, path: z}]"}`, one, v+"configMap: ConfigMap ns/app a,b refvol"),
		row("sources", `{sources: "[{configMap: {name: app, namespace: ns}}, {secret: {name: db, optional: true, items: [{key: a, path: x}]}}]"}`, one,
			v+"sources[0].configMap.name: ConfigMap ns/app refvol", v+"sources[1].secret.name: Secret ns/db a optional refvol"),
		row("join", `{sources: "[{join: {path: p, sources: [{configMap: {name: app, key: k}}, {secret: {name: db, key: l, namespace: other, optional: true}}]}}]"}`, one,
			v+"sources[0].join.sources[0].configMap.name: ConfigMap ns/app k refvol",
			v+"sources[0].join.sources[1].secret.name: Secret other/db l optional refvol",
			"warning: "+v+"sources[0].join.sources[1].secret.namespace: an object of another namespace: needs --cross-namespace of the plugin, and the service account's right to get it"),
		row("expand", `{sources: "[{expand: {path: p, configMap: {name: app, key: t}, envFrom: [{secretRef: {name: b, optional: true}}], env: [{name: A, valueFrom: {secretKeyRef: {name: c, key: k}}, escape: json}]}}]"}`, one,
			v+"sources[0].expand.configMap.name: ConfigMap ns/app t refvol",
			v+"sources[0].expand.envFrom[0].secretRef.name: Secret ns/b optional refvol",
			v+"sources[0].expand.env[0].valueFrom.secretKeyRef.name: Secret ns/c k refvol"),
		row("env", `{sources: "[{env: {path: e, envFrom: [{configMapRef: {name: a}}, {prefix: P_, secretRef: {name: b, optional: true}}],
				env: [{name: A, value: x}, {name: B, valueFrom: {secretKeyRef: {name: c, key: k}}}]}}]"}`, one,
			v+"sources[0].env.envFrom[0].configMapRef.name: ConfigMap ns/a refvol",
			v+"sources[0].env.envFrom[1].secretRef.name: Secret ns/b optional refvol",
			v+"sources[0].env.env[1].valueFrom.secretKeyRef.name: Secret ns/c k refvol"),
		row("podEnv", `{sources: "[{podEnv: {path: e, container: c}}, {podEnv: {path: f, container: init}}]"}`, "[{name: c, envFrom: [{configMapRef: {name: m, optional: true}}], env: [{name: L, valueFrom: {resourceFieldRef: {resource: limits.cpu}}}, {name: I, valueFrom: {fieldRef: {fieldPath: status.podIP}}}]}]",
			"spec.containers[0].envFrom[0].configMapRef.name: ConfigMap ns/m optional",
			v+"sources[0].podEnv: ConfigMap ns/m optional refvol via spec.containers[0].envFrom[0].configMapRef.name",
			v+"sources[1].podEnv: Secret ns/i k refvol via "+initRef,
			"warning: "+v+"sources[0].podEnv: leaves out values that a volume can't know: I (fieldRef status.podIP), L (resourceFieldRef limits.cpu)"),
		row("volume", `{volume: own}`, "[{name: c, volumeMounts: [{name: v, mountPath: /v}]}]",
			"spec.volumes[1].secret.secretName: Secret ns/s k optional",
			v+"volume: Secret ns/s k optional refvol via spec.volumes[1].secret.secretName").with("{name: own, secret: {secretName: s, optional: true, items: [{key: k, path: p}]}}"),
		row("volumes that are mounted as well", `{sources: "[{volume: {name: a}}, {volume: {name: b}}]"}`, "[{name: c, volumeMounts: [{name: v, mountPath: /v}, {name: b, mountPath: /b}]}]",
			"spec.volumes[1].configMap.name: ConfigMap ns/m",
			"spec.volumes[2].projected.sources[0].secret.name: Secret ns/s",
			"spec.volumes[2].projected.sources[1].configMap.name: ConfigMap ns/m",
			v+"sources[0].volume.name: ConfigMap ns/m refvol via spec.volumes[1].configMap.name",
			v+"sources[1].volume.name: Secret ns/s refvol via spec.volumes[2].projected.sources[0].secret.name",
			v+"sources[1].volume.name: ConfigMap ns/m refvol via spec.volumes[2].projected.sources[1].configMap.name",
			"warning: spec.containers[0].volumeMounts[1]: volume v shows the same: two copies and two watches; mount one of the two only").with("{name: a, configMap: {name: m}}", "{name: b, projected: {sources: [{secret: {name: s}}, {configMap: {name: m}}]}}"),
		row("volume that does not exist", "{volume: own}", one, "problem: "+v+`volume: the pod has no volume "own"`),
		row("volume itself", "{volume: v}", one,
			"problem: "+v+"volume: spec.volumes[0].csi: Forbidden: a volume source shows a configMap, secret or projected volume; mount this one itself"),
		row("volumes of one path", `{sources: "[{volume: {name: a}}, {volume: {name: b}}]"}`, one,
			"spec.volumes[1].configMap.name: ConfigMap ns/m k",
			"spec.volumes[2].configMap.name: ConfigMap ns/m l",
			v+"sources[0].volume.name: ConfigMap ns/m k refvol via spec.volumes[1].configMap.name",
			v+"sources[1].volume.name: ConfigMap ns/m l refvol via spec.volumes[2].configMap.name",
			`problem: spec.volumes[0].csi.volumeAttributes: spec.volumes[2].configMap.items[0].path: Invalid value: "p": conflicting duplicate paths: also the path of spec.volumes[1].configMap.items[0].path`).with("{name: a, configMap: {name: m, items: [{key: k, path: p}]}}", "{name: b, configMap: {name: m, items: [{key: l, path: p}]}}"),
		row("no attributes", "{}", one, "problem: "+v+"sources: Required value: one of configMap, secret, volume and sources must be set"),
		row("several mistakes", `{sources: "[{configMap: {name: a, items: [{key: k, path: ../k}]}}, {secret: {nam: b, name: c}}]", defaultMode: "9"}`, one,
			"problem: "+v+`defaultMode: Invalid value: "9": must be an octal number with a leading zero, from "0000" to "0777"`,
			"problem: "+v+`sources[0].configMap.items[0].path: Invalid value: "../k": must not contain ".."`,
			"problem: "+v+"sources[1].secret.nam: Forbidden: unknown field; known are canary, items, name, namespace, optional, path"),
		row("more mistakes than are reported", `{sources: "[`+strings.Repeat("5, ", 33)+`]"}`, one, append(first32, "problem: spec.volumes[0].csi.volumeAttributes: and 1 more")...),
		row("subPath", "{secret: s}", "[{name: c, volumeMounts: [{name: v, mountPath: /a}, {name: v, mountPath: /b, subPath: b}, {name: other, mountPath: /c, subPath: c}]}, {name: d, volumeMounts: [{name: v, mountPath: /d, subPathExpr: $(D)}]}]",
			v+"secret: Secret ns/s refvol",
			"warning: spec.containers[0].volumeMounts[1].subPath: the file that it mounts keeps its content"+inPlace,
			"warning: spec.containers[1].volumeMounts[0].subPathExpr: a file that it mounts keeps its content, and a directory becomes empty a second after the volume's first update"+inPlace),
	} {
		t.Run(test.name, func(t *testing.T) {
			text := podWith(test.attributes, test.containers)
			for _, own := range test.volumes {
				text += "  - " + own + "\n"
			}
			r := add(t, nil, text)
			got := references(r)
			if got[0] != initEnv {
				t.Errorf("the first reference is %s", got[0])
			}
			for _, warning := range r.Warnings {
				got = append(got, "warning: "+warning.String())
			}
			for _, problem := range r.Problems {
				got = append(got, "problem: "+problem.String())
			}
			for i := range got {
				got[i] = strings.Replace(got[i], "f.yaml, document 1: Pod ns/p: ", "", 1)
			}
			lines(t, "what is said", got[1:], test.want)
		})
	}
}

func trim(prefix string, all []string) []string {
	for i := range all {
		all[i] = strings.TrimPrefix(all[i], prefix)
	}
	return all
}

// The attributes of other drivers' volumes, and other volumes, are ignored.
func TestOtherDrivers(t *testing.T) {
	const text = `
apiVersion: v1
kind: Pod
spec:
  volumes:
  - {name: a, csi: {driver: other.example.com, volumeAttributes: {secret: s, unknown: x}}}
  - {name: b, emptyDir: {}}
`
	if r := add(t, nil, text); len(r.Problems)+len(r.Workloads[0].References) != 0 {
		t.Errorf("got %+v", r)
	}
	if n := len(checkedBy(t, Options{Driver: "other.example.com"}, text).Problems); n != 2 {
		t.Errorf("as the driver of that name: %d problems, want 2", n)
	}
}

// TestReadable: a user that cannot read a file is reported before the application fails.
func TestReadable(t *testing.T) {
	const at = "f.yaml, document 1: Pod ns/p: spec.volumes[0].csi.volumeAttributes: "
	denied := func(user, mode, owner, group string) string {
		return "user " + user + " of container c can't read a file of mode " + mode + ", owner " + owner + " and group " + group + ": set uid, gid or mode, or the pod's fsGroup"
	}
	for _, test := range []struct{ pod, container, attributes, want string }{
		{"{runAsUser: 1000}", "{}", `{secret: s, defaultMode: "0400"}`, denied("1000", "0400", "0", "0")},
		{"{runAsUser: 1000}", "{runAsUser: 0}", `{secret: s, defaultMode: "0400"}`, ""},
		{"{}", "{runAsUser: 1000}", `{secret: s, items: "[{key: a, path: a}, {key: b, path: b, mode: 0400}]"}`, denied("1000", "0400", "0", "0")},
		{"{runAsUser: 1000}", "{}", `{secret: s}`, ""},
		{"{runAsUser: 1000, fsGroup: 7}", "{}", `{secret: s, defaultMode: "0400"}`, ""},
		{"{runAsUser: 1000, fsGroup: 7}", "{}", `{secret: s, defaultMode: "0400", uid: "1000"}`, ""},
		{"{runAsUser: 1000, fsGroup: 7}", "{}", `{secret: s, defaultMode: "0400", uid: "1001"}`, denied("1000", "0400", "1001", "7")},
		{"{runAsUser: 1000, fsGroup: 7}", "{}", `{secret: s, defaultMode: "0440", uid: "1001"}`, ""},
		{"{runAsUser: 1000}", "{}", `{secret: s, defaultMode: "0440", gid: "8"}`, denied("1000", "0440", "0", "8")},
		{"{runAsUser: 1000}", "{}", `{secret: s, defaultMode: "0440", gid: "1"}`, denied("1000", "0440", "0", "1")},
		{"{runAsUser: 1000, supplementalGroups: [8]}", "{}", `{secret: s, defaultMode: "0440", gid: "8"}`, ""},
		{"{runAsUser: 1000}", "{runAsGroup: 9}", `{secret: s, defaultMode: "0440"}`, denied("1000", "0440", "0", "0")},
		{"{runAsUser: 1000}", "{}", `{secret: s, defaultMode: "0040", uid: "1000"}`, denied("1000", "0040", "1000", "0")},
		{"{runAsUser: 1000}", "{}", `{sources: "[{join: {path: p, mode: 0400, sources: [{secret: {name: s, key: k}}]}}]"}`, denied("1000", "0400", "0", "0")},
		{"{}", "{}", `{secret: s, defaultMode: "0400"}`, ""}, // the image sets the user
	} {
		mounts := ", volumeMounts: [{name: v, mountPath: /v}]}"
		text := "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {securityContext: " + test.pod +
			", containers: [{name: other, securityContext: {runAsUser: 1}}, {name: c, securityContext: " + test.container + mounts +
			"], volumes: [{name: v, csi: {driver: csi.refvol.dev, readOnly: true, volumeAttributes: " + test.attributes + "}}]}\n"
		var want []string
		if test.want != "" {
			want = []string{at + test.want}
		}
		r := add(t, nil, text)
		lines(t, test.pod+test.container+test.attributes, texts(r.Warnings), want)
		lines(t, "problems", texts(r.Problems), nil)
	}
}
