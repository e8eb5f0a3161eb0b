package fuzz

import (
	"io/fs"
	"maps"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc/status"
)

func FuzzVolumeContext(f *testing.F) {
	type input struct{ sources, key, value, uid, namespace string }
	item := func(path string) string { return "[{configMap: {name: app, items: [{key: key, path: " + path + "}]}}]" }
	for _, in := range []input{
		{sources: item("x")},
		{sources: item("a/b/c")},
		{sources: item("../x")},
		{sources: item("/etc/x")},
		{sources: item("..data")},
		{sources: item(`"a/../../x"`)},
		{sources: item(`"x\0y"`)},
		{sources: item(`"a//b"`)},
		{sources: item("./x")},
		{key: "configMap", value: "app"},
		{key: "secret", value: "../../ns/x"},
		{key: "configMap", value: missing},
		{key: "configMap", value: "app", uid: ".."},
		{key: "configMap", value: "app", uid: "."},
		{key: "configMap", value: "app", uid: otherUID},
		{key: "configMap", value: "app", uid: "uid-link"},
		{key: "configMap", value: "app", uid: "uid-self/../uid-other"},
		{key: "configMap", value: "app", uid: "uid-self/volumes/kubernetes.io~csi/linked"},
		{key: "configMap", value: "app", namespace: ".."},
		{key: "configMap", value: "app", namespace: "a/b"},
		{key: podUID, value: otherUID, sources: item("x")},
		{key: podName, value: "../x", sources: item("x")},
		{key: podAccount, value: "", sources: item("x")},
		{key: "csi.storage.k8s.io/serviceAccount.tokens", value: `{"":{"token":"x"}}`, sources: item("x")},
		{key: "writeStrategy", value: "InPlace", sources: item("a/b")},
		{key: "updatePolicy", value: "Pinned", sources: item("a/b")},
		{key: "uid", value: "1000", sources: item("a")},
		{key: "defaultMode", value: "0777", sources: item("a")},
		{key: "defaultMode", value: "04777", sources: item("a")},
		{key: "onDelete", value: "Remove", sources: item("a")},
		{sources: "[{configMap: {name: app}}, {secret: {name: db, namespace: other}}]"},
		{sources: "[{secret: {name: db, namespace: ../x}}]"},
		{sources: "[{env: {path: a.env, envFrom: [{configMapRef: {name: app}}]}}]"},
		{sources: "[{podEnv: {path: d/a.env, container: c}}]"},
		{sources: "[{volume: {name: own}}, {podEnv: {path: a.env, container: c}}]"},
		{key: "volume", value: "own"},
		{key: "volume", value: "../own"},
		{sources: "[{env: {path: ../a.env, env: [{name: A, value: b}]}}]"},
		{sources: "{}"},
		{sources: "[{}]"},
		{sources: "[&a [*a]]"},
		{sources: strings.Repeat("[", 1000)},
	} {
		f.Add(in.sources, in.key, in.value, in.uid, in.namespace)
	}
	on := keep(f)
	f.Fuzz(func(t *testing.T, sources, key, value, uid, namespace string) {
		if !valid(sources, key, value, uid, namespace) {
			return
		}
		on(t, func(w *world) {
			changed := map[string]string{"sources": sources, podUID: uid, podNamespace: namespace}
			maps.DeleteFunc(changed, func(_, value string) bool { return value == "" })
			if key != "" {
				changed[key] = value
			}
			w.tryContext(t, changed)
		})
	})
}

// tryContext publishes a volume with a context, once at the target of the pod that a volume
// is for, and once where the context says that the pod is.
func (w *world) tryContext(t *testing.T, changed map[string]string) {
	t.Helper()
	const id = "csi-context"
	claimed := selfUID
	if uid := changed[podUID]; uid != "" {
		claimed = uid
	}
	for _, uid := range []string{selfUID, claimed} {
		request := w.request(id, selfUID, "app")
		request.TargetPath = w.kubelet + "/pods/" + uid + "/volumes/kubernetes.io~csi/" + settings + "/mount"
		delete(request.VolumeContext, "configMap")
		maps.Copy(request.VolumeContext, changed)
		at := w.place(id, request.GetTargetPath())
		if at.target != w.target(claimed, settings) {
			at.target = ""
		}
		err := w.publish(request)
		w.check(t, "publish", at)
		if err != nil {
			wantText(t, status.Convert(err).Message())
		} else {
			w.wantWithin(t, at.target)
			if again := w.publish(request); again != nil {
				t.Errorf("a second publish: %v", again)
			}
		}
		w.settle(t, id, request.GetTargetPath())
	}
}

// wantWithin checks that whatever a volume shows is in it.
func (w *world) wantWithin(t *testing.T, target string) {
	t.Helper()
	if target == "" {
		t.Error("there is no place where this volume could be published")
		return
	}
	err := filepath.WalkDir(target, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		leads, err := filepath.EvalSymlinks(path)
		if err == nil && !isAt(leads, target) {
			t.Errorf("%s leads to %s", path, leads)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}
