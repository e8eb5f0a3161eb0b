package manifests

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/refvol/refvol/pkg/pod"
	"github.com/refvol/refvol/pkg/volume"
)

const nodeIdentityPolicy = "refvol-node-identity"

// naming returns the spec of a pod that names an object NAME in one place.
func naming(place, name string) string {
	return "spec: {" + strings.ReplaceAll(places()[place], "NAME", name) + "}"
}

func places() map[string]string {
	all := map[string]string{
		"configMapRef":                         "containers: [{name: c, envFrom: [{configMapRef: {name: NAME}}]}]",
		"configMapKeyRef of an init container": "initContainers: [{name: i, image: none, env: [{name: A, value: x}, {name: B, valueFrom: {configMapKeyRef: {name: NAME, key: k}}}]}]",
		"secretRef of an init container":       "initContainers: [{name: i, image: none, envFrom: [{secretRef: {name: NAME}}]}]",
		"secretKeyRef":                         "containers: [{name: c, env: [{name: A, value: x}, {name: B, valueFrom: {secretKeyRef: {name: NAME, key: k}}}]}]",
		"imagePullSecrets":                     "imagePullSecrets: [{name: NAME}]",
	}
	for volume, source := range map[string]string{
		"configMap":            "configMap: {name: NAME}",
		"projected configMap":  "projected: {sources: [{downwardAPI: {}}, {configMap: {name: NAME}}]}",
		"secret":               "secret: {secretName: NAME}",
		"projected secret":     "projected: {sources: [{downwardAPI: {}}, {secret: {name: NAME}}]}",
		"none":                 "emptyDir: {sizeLimit: 1Mi}",
		"azureFile":            "azureFile: {secretName: NAME, shareName: s}",
		"cephfs":               "cephfs: {monitors: [m], secretRef: {name: NAME}}",
		"cinder":               "cinder: {volumeID: v, secretRef: {name: NAME}}",
		"flexVolume":           "flexVolume: {driver: d, secretRef: {name: NAME}}",
		"rbd":                  "rbd: {monitors: [m], image: i, secretRef: {name: NAME}}",
		"scaleIO":              "scaleIO: {gateway: g, system: s, volumeName: v, secretRef: {name: NAME}}",
		"iscsi":                "iscsi: {targetPortal: 1.2.3.4, iqn: 'iqn.2001-04.com.example:storage', lun: 0, chapAuthSession: true, secretRef: {name: NAME}}",
		"storageos":            "storageos: {volumeName: v, secretRef: {name: NAME}}",
		"nodePublishSecretRef": "csi: {driver: csi.example.com, nodePublishSecretRef: {name: NAME}}",
	} {
		all[volume] = "volumes: [{name: native, " + source + "}]"
	}
	return all
}

// TestNodeIdentityPolicy has the API server judge pods with the policy in force.
func TestNodeIdentityPolicy(t *testing.T) {
	pods, own := shared.Client().CoreV1().Pods(consumer), inline(attributes{"configMap": "app"})
	old := must(pods.Create(t.Context(), podWith("old", own), metav1.CreateOptions{}))(t)
	install(t, "node-identity")
	awaitRefusal(t, podWith("sentinel", own), "ValidatingAdmissionPolicy '"+nodeIdentityPolicy+"'")
	t.Run("names", wantsNames)
	t.Run("sources", seesKindsInSources)
	t.Run("others", func(t *testing.T) { leavesOthers(t, old) })
}

// wantsNames has pods whose spec names an object somewhere, or not, and whose volume
// names it, or another: the policy refuses those whose spec does not name what the volume shows.
func wantsNames(t *testing.T) {
	for place := range places() {
		for _, named := range []string{"app", "another"} {
			for attribute, kind := range map[string]volume.Kind{"configMap": volume.ConfigMap, "secret": volume.Secret} {
				created := merged(podWith("app", inline(attributes{attribute: "app"})), naming(place, named))
				shown := volume.Ref{Kind: kind, Namespace: consumer, Name: "app"}
				err := try(t.Context(), created)
				if slices.Contains(pod.Refs(&created.Spec, consumer), shown) {
					wantRefusal(t, err)
				} else {
					wantRefusal(t, err, "ValidatingAdmissionPolicy '"+nodeIdentityPolicy+"'", "volume settings: "+attribute+
						": Forbidden: the pod's spec does not name "+shown.String()+" itself, and this node's plugin runs with --identity=node: "+
						"add a volume of the pod that names it, and show that by a volume source")
				}
				if t.Failed() {
					t.Fatalf("%s names %s, and the volume shows %s", place, named, shown)
				}
			}
		}
	}
}

// seesKindsInSources: in YAML the policy sees only of which kind there is an object,
// and refuses it if the spec names none of that kind. The plugin sees the rest.
func seesKindsInSources(t *testing.T) {
	const noConfigMap, noSecret = "sources: Forbidden: the pod's spec names no ConfigMap itself", "sources: Forbidden: the pod's spec names no Secret itself"
	for sources, says := range map[string][]string{
		"- configMap: {name: app}":                                 {noConfigMap},
		"[{configMap: {name: app}}]":                               {noConfigMap},
		`[{"configMap": {"name": "app"}}]`:                         {noConfigMap},
		`[{"configMap":{"name":"app"}}]`:                           {noConfigMap},
		"- secret:\n    name: app":                                 {noSecret},
		"- env: {path: e, envFrom: [{configMapRef: {name: app}}]}": {noConfigMap},
		"- env:\n    path: e\n    env:\n    - name: A\n      valueFrom:\n        secretKeyRef: {name: app, key: k}": {noSecret},
		"- volume: {name: secret}":                         nil,
		"- volume: {name: native} # a configMap, a secret": nil,
		"- podEnv: {path: configMap.env, container: c}":    nil,
		"- configMap: {name: kube-root-ca.crt}":            nil, // which the token's volume names
		`[{"config\u004dap": {"name": "app"}}]`:            nil, // which the plugin refuses
	} {
		err := try(t.Context(), podWith("app", inline(attributes{"sources": sources})))
		wantRefusal(t, err, says...)
		// An object of that kind that the spec names may be the one.
		pod := merged(podWith("app", inline(attributes{"sources": sources})), naming("configMap", "x"))
		wantRefusal(t, try(t.Context(), merged(pod, naming("secretKeyRef", "x"))))
		if t.Failed() {
			t.Fatalf("sources %q", sources)
		}
	}
}

// leavesOthers: other pods, and volumes of the driver that show what the pod itself names, come and go as before.
func leavesOthers(t *testing.T, old *corev1.Pod) {
	leavesAlone(t, old)
	foreign := inline(attributes{"configMap": "app"})
	foreign.CSI.Driver = "csi.example.com"
	for _, pod := range []*corev1.Pod{
		podWith("app"), podWith("app", foreign), podWith("app", inline(nil)), podWith("app", inline(attributes{"volume": "native"})),
		podWith("app", repeat(20, attributes{"sources": "#" + strings.Repeat("configMap ", volume.MaxAttributesSize/10-1)})...),
	} {
		wantRefusal(t, try(t.Context(), pod))
	}
	several := podWith("app", inline(attributes{"configMap": "app"}), inline(attributes{"volume": "native"}), inline(attributes{"configMap": "more"}))
	wantRefusal(t, try(t.Context(), several), "volume settings: ", `"default/app"`, "; volume settings-2: ", `"default/more"`)
}
