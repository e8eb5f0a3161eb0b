package manifests

import (
	"fmt"
	"testing"
)

const policyName = "refvol-volumes"

// beyond are volumes that the policy refuses and the plugin does not; name is the text.
func beyond() map[string]refusal {
	const notHere = "this node's plugin shows no objects of others (--cross-namespace)"
	const kubelets = "volumeAttributes: Forbidden: attributes under csi.storage.k8s.io/ are the kubelet's own"
	return map[string]refusal{
		"a token of the author's own": {name: kubelets, attributes: attributes{
			"configMap": "app", "csi.storage.k8s.io/serviceAccount.tokens": "{}",
		}},
		"a volume that the pod lacks": {name: `volume: the pod has no volume "none"`, attributes: attributes{"volume": "none"}},
		"another pod's name":          {name: kubelets, attributes: attributes{"configMap": "app", "csi.storage.k8s.io/pod.name": "other"}},
		"the pod's own namespace":     {name: notHere, forbidsAcross: true, attributes: attributes{"sources": "[{secret: {name: db, namespace: " + consumer + "}}]"}},
		"the word in a value":         {name: notHere, forbidsAcross: true, attributes: attributes{"sources": "[{secret: {name: namespace}}]"}},
		"a backslash in a value":      {name: notHere, forbidsAcross: true, attributes: attributes{"sources": `[{"secret": {"name": "d\u0062"}}]`}},
		"a lookalike of a field path": {name: notHere, forbidsAcross: true, attributes: attributes{"sources": "[{secret: {name: nmetadata.namespaceamespace}}]"}},
	}
}

// refusesMoreThanThePlugin: what the kubelet sets is not the author's to set, and where
// the policy can't tell what YAML says it is strict.
func refusesMoreThanThePlugin(t *testing.T, v variant) {
	for name, test := range beyond() {
		t.Run(name, func(t *testing.T) {
			inline := test.volume()
			wantParsed(t, &inline, v)
			err := try(t.Context(), podWith("app", inline))
			if test.forbidsAcross && v.across() {
				wantRefusal(t, err)
			} else {
				wantRefusal(t, err, "volume settings: ", test.name)
			}
		})
	}
}

// namesEveryVolume: a refusal tells which of a pod's volumes it is about.
func namesEveryVolume(t *testing.T, v variant) {
	good := inline(attributes{"configMap": "app"})
	for _, bad := range append(v.refused()[:3], refusal{attributes: attributes{"secret": "s", "csi.storage.k8s.io/x": "y"}}) {
		pod := podWith("app", good, bad.volume(), good, bad.volume())
		wantRefusal(t, try(t.Context(), pod), "settings-1", "settings-3")
	}
	wantRefusal(t, try(t.Context(), podWith("app", good, good)))
}

// hasAMessageForOddNames: where a name would make the text too long or of several lines,
// the API server takes the plain one.
func hasAMessageForOddNames(t *testing.T) {
	many := attributes{"configMap": "app"}
	for i := range 200 {
		many[fmt.Sprintf("unknown-%d", i)] = "x"
	}
	for _, odd := range []attributes{many, {"configMap": "app", "a\nb": "x"}} {
		wantRefusal(t, try(t.Context(), podWith("app", inline(odd))), "denied request: unknown attribute")
	}
}
