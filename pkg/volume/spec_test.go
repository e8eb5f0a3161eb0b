package volume

import (
	"maps"
	"strings"
	"testing"
)

func TestAttributes(t *testing.T) {
	context := podContext()
	context["sources"] = "[]"
	context["csi.storage.k8s.io/serviceAccount.tokens"] = "a token"
	context["csi.storage.k8s.io/ephemeral"] = "true"
	context["csi.storage.k8s.io"] = "not a kubelet's key"
	before := maps.Clone(context)
	want := map[string]string{"sources": "[]", "csi.storage.k8s.io": "not a kubelet's key"}
	got := Attributes(context)
	if !maps.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if !maps.Equal(context, before) {
		t.Errorf("the argument became %q", context)
	}
	got["defaultMode"] = "0400"
	if !maps.Equal(context, before) {
		t.Errorf("a change of the result changed the argument to %q", context)
	}
	if got := Attributes(nil); len(got) != 0 {
		t.Errorf("Attributes(nil) = %q", got)
	}
}

func podContext() map[string]string {
	return map[string]string{
		"csi.storage.k8s.io/pod.namespace":       "ns",
		"csi.storage.k8s.io/pod.name":            "web-0",
		"csi.storage.k8s.io/pod.uid":             "8f7e",
		"csi.storage.k8s.io/serviceAccount.name": "web",
	}
}

func TestPodFromContext(t *testing.T) {
	context := podContext()
	context["configMap"] = "app"
	pod, err := PodFromContext(context)
	if err != nil {
		t.Fatal(err)
	}
	if pod != testPod() {
		t.Errorf("got %+v, want %+v", pod, testPod())
	}
}

func TestPodFromContextRefuses(t *testing.T) {
	const prefix = "csi.storage.k8s.io/"
	required := func(key string) string {
		return "volume_context[" + prefix + key + "]: Required value: the CSIDriver object must have podInfoOnMount: true"
	}
	invalid := func(key, shown string) string {
		return "volume_context[" + prefix + key + "]: Invalid value: " + shown + ": must be a single path element"
	}
	check := func(name string, context map[string]string, want string) {
		t.Run(name, func(t *testing.T) {
			pod, err := PodFromContext(context)
			checkError(t, err, want)
			if pod != (Pod{}) {
				t.Errorf("got %+v beside the error", pod)
			}
			checkErrorText(t, err)
		})
	}
	long := strings.Repeat("x", 70)
	for _, key := range []string{"pod.namespace", "pod.name", "pod.uid", "serviceAccount.name"} {
		without := podContext()
		delete(without, prefix+key)
		check("no "+key, without, required(key))
		for value, want := range map[string]string{
			"":          required(key),
			"/":         invalid(key, `"/"`),
			"a/b":       invalid(key, `"a/b"`),
			"../../etc": invalid(key, `"../../etc"`),
			".":         invalid(key, `"."`),
			"..":        invalid(key, `".."`),
			"a\x00b":    invalid(key, `"a\x00b"`),
			long + "/":  invalid(key, `"`+long[:64]+`... (71 bytes)"`),
		} {
			context := podContext()
			context[prefix+key] = value
			check(key+" is "+value, context, want)
		}
	}
	all := "[" + required("pod.namespace") + ", " + required("pod.name") + ", " + required("pod.uid") + ", " + required("serviceAccount.name") + "]"
	check("nil", nil, all)
	check("without the prefix", map[string]string{"pod.namespace": "ns", "pod.name": "p", "pod.uid": "u", "serviceAccount.name": "s"}, all)
}
