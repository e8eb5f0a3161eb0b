package volume

import (
	"maps"
	"strings"
	"testing"
)

// TestPodFromContext: a pod is known by all of its names, as the kubelet gives them. Each one must be fit for a path and a log.
func TestPodFromContext(t *testing.T) {
	kubelets := map[string]string{
		kubeletPrefix + "pod.namespace": "ns", kubeletPrefix + "pod.name": "web-0", kubeletPrefix + "pod.uid": "8f7e",
		kubeletPrefix + "serviceAccount.name": "web", "secret": "db",
	}
	if pod, err := PodFromContext(kubelets); err != nil || pod != testPod() {
		t.Errorf("got %+v, %v", pod, err)
	}
	const (
		required    = "Required value: the CSIDriver object must have podInfoOnMount: true"
		noElement   = "must be a single path element"
		unprintable = "must not contain characters that can't be printed"
	)
	for name, test := range map[string]struct{ key, value, want string }{
		"no namespace":  {"pod.namespace", "", required},
		"no name":       {"pod.name", "", required},
		"no UID":        {"pod.uid", "", required},
		"no account":    {"serviceAccount.name", "", required},
		"a path":        {"pod.uid", "a/b", `Invalid value: "a/b": ` + noElement},
		"a NUL":         {"pod.uid", "a\x00", `Invalid value: "a\x00": ` + noElement},
		"the directory": {"pod.name", ".", `Invalid value: ".": ` + noElement},
		"the one above": {"pod.name", "..", `Invalid value: "..": ` + noElement},
		"a line":        {"pod.name", "web\n", `Invalid value: "web\n": ` + unprintable},
	} {
		t.Run(name, func(t *testing.T) {
			changed := maps.Clone(kubelets)
			changed[kubeletPrefix+test.key] = test.value
			pod, err := PodFromContext(changed)
			checkError(t, err, "volume_context["+kubeletPrefix+test.key+"]: "+test.want)
			if pod != (Pod{}) {
				t.Errorf("got the pod %+v", pod)
			}
		})
	}
	for _, name := range []string{"...", ".a", "a..b", "web.0"} {
		changed := maps.Clone(kubelets)
		changed[kubeletPrefix+"pod.name"] = name
		if pod, err := PodFromContext(changed); err != nil || pod.Name != name {
			t.Errorf("got %+v, %v", pod, err)
		}
	}
	if _, err := PodFromContext(nil); err == nil || strings.Count(err.Error(), required) != 4 {
		t.Errorf("an empty context: %v", err)
	}
}

// TestRemoveDeleted: files of deleted objects are removed only if the author asks for it.
func TestRemoveDeleted(t *testing.T) {
	for onDelete, want := range map[string]bool{"": false, "Keep": false, "Remove": true} {
		attributes := map[string]string{"secret": "db", "onDelete": onDelete}
		if onDelete == "" {
			delete(attributes, "onDelete")
		}
		spec, err := Parse(attributes, testPod())
		if err != nil || spec.RemoveDeleted() != want {
			t.Errorf("%q: got %+v, %v", onDelete, spec, err)
		}
	}
}
