package suite

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// refusedCase is a view of the keys a and b of a ConfigMap that refvol refuses.
type refusedCase struct {
	name string
	view view
	// refvol is in the event on refvol's pod.
	refvol string
	// native is in the API server's refusal, or in an event on the kubelet's pod. If it
	// is empty that pod starts, and its volume has the file p.
	native string
}

func refusedCases() []refusedCase {
	settings := func(items ...corev1.KeyToPath) corev1.VolumeProjection {
		return source(kindConfigMap, "settings", items...)
	}
	views := func(s ...corev1.VolumeProjection) view { return view{sources: s, projected: len(s) > 1} }
	return []refusedCase{
		{
			name: "equal", view: views(settings(item("a", "p")), settings(item("b", "p"))),
			refvol: "sources[1].configMap.items[0].path: Invalid value: \"p\": conflicting duplicate paths",
			native: "conflicting duplicate paths",
		},
		{
			name: "equal-single", view: views(settings(item("a", "p"), item("b", "p"))),
			refvol: "items[1].path: Invalid value: \"p\": conflicting duplicate paths",
		},
		{
			name: "file-and-directory", view: views(settings(item("a", "p"), item("b", "p/q"))),
			refvol: "items[1].path: Invalid value: \"p/q\"",
			native: "file exists",
		},
		{
			name: "key-and-directory", view: views(settings(), settings(item("b", "a/q"))),
			refvol: "\"a/q\" can't be shown",
			native: "file exists",
		},
	}
}

// Paths that can't stand beside each other are refused with the field's path. What the
// API server lets pass never starts with the kubelet's volume, or shows one of the two.
func TestParityOfRefusals(t *testing.T) {
	t.Parallel()
	n := newNamespace(t)
	n.put(kindConfigMap, "settings", *text("a", "1", "b", "2"))
	for _, c := range refusedCases() {
		t.Run(c.name, func(t *testing.T) {
			n := &namespace{n.cluster, t, n.name}
			n.create(newPod(c.name+refvolSuffix, c.view.refvol(t, "volume"))).awaitWarning("FailedMount", c.refvol)
			created, err := n.client.CoreV1().Pods(n.name).Create(t.Context(),
				newPod(c.name+nativeSuffix, c.view.native("volume")), metav1.CreateOptions{})
			if apierrors.IsInvalid(err) && c.native != "" && strings.Contains(err.Error(), c.native) {
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			p := &pod{n, created}
			if c.native != "" {
				p.awaitWarning("FailedMount", c.native)
				return
			}
			p.awaitReady()
			if shown := p.snapshots(t)["volume"]; shown["p"] == "" {
				t.Errorf("the kubelet's volume shows %q", shown)
			}
		})
	}
}
