package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/refvol/refvol/e2e/tools/harness"
)

func TestMalformedPublish(t *testing.T) {
	n := newNode(t)
	n.configMap("app", map[string]string{"key": n.canary()})
	for _, tc := range []struct {
		name   string
		change func(*csi.NodePublishVolumeRequest)
		want   string
	}{
		{"no id", func(r *csi.NodePublishVolumeRequest) { r.VolumeId = "" }, "volume_id: Required value"},
		{"id with a slash", func(r *csi.NodePublishVolumeRequest) { r.VolumeId = "../x" }, "volume_id: Invalid value"},
		{"id too long", func(r *csi.NodePublishVolumeRequest) { r.VolumeId = strings.Repeat("x", 129) }, "volume_id: Invalid value"},
		{"no target", func(r *csi.NodePublishVolumeRequest) { r.TargetPath = "" }, "target_path: Required value"},
		{"relative target", func(r *csi.NodePublishVolumeRequest) { r.TargetPath = "pods/x" }, "target_path: Invalid value"},
		{"target elsewhere", func(r *csi.NodePublishVolumeRequest) { r.TargetPath = "/etc/mount" }, "target_path: Invalid value"},
		{"target with dots", func(r *csi.NodePublishVolumeRequest) {
			r.TargetPath = filepath.Dir(r.TargetPath) + "/../../../../x/volumes/mount"
		}, "target_path: Invalid value"},
		{"target in an emptyDir", func(r *csi.NodePublishVolumeRequest) {
			r.TargetPath = strings.Replace(r.TargetPath, "kubernetes.io~csi", "kubernetes.io~empty-dir", 1)
		}, "/volumes/kubernetes.io~csi/<volume name>/mount"},
		{"target with a zero byte", func(r *csi.NodePublishVolumeRequest) { r.TargetPath += "\x00" }, `mount\x00": must be `},
		{"target of megabytes", func(r *csi.NodePublishVolumeRequest) {
			r.TargetPath = "/" + strings.Repeat("x", 1<<20)
		}, "target_path: Invalid value: a path of 1048577 bytes: must be "},
		{"target of another pod", func(r *csi.NodePublishVolumeRequest) {
			r.VolumeContext["csi.storage.k8s.io/pod.uid"] = "another"
		}, "target_path: Invalid value"},
		{"no capability", func(r *csi.NodePublishVolumeRequest) { r.VolumeCapability = nil }, "volume_capability: Required value"},
		{"block volume", func(r *csi.NodePublishVolumeRequest) {
			r.VolumeCapability.AccessType = &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}}
		}, "volume_capability.mount: Required value"},
		{"mount group is a name", func(r *csi.NodePublishVolumeRequest) {
			r.VolumeCapability.GetMount().VolumeMountGroup = "wheel"
		}, "volume_mount_group: Invalid value"},
		{"no pod name", without("csi.storage.k8s.io/pod.name"), "podInfoOnMount"},
		{"no pod namespace", without("csi.storage.k8s.io/pod.namespace"), "podInfoOnMount"},
		{"no pod uid", without("csi.storage.k8s.io/pod.uid"), "podInfoOnMount"},
		{"not read-only", func(r *csi.NodePublishVolumeRequest) { r.Readonly = false }, "readOnly: Required value: must be true"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			v := n.short("app")
			if err := n.Prepare(v); err != nil {
				t.Fatal(err)
			}
			req := n.PublishRequest(v)
			tc.change(req)
			_, err := n.Node().NodePublishVolume(t.Context(), req)
			wantStatus(t, err, codes.InvalidArgument, tc.want)
			if err := n.CleanUp(v); err != nil {
				t.Error(err)
			}
		})
	}
	n.wantNothingLeft()
}

func without(key string) func(*csi.NodePublishVolumeRequest) {
	return func(r *csi.NodePublishVolumeRequest) { delete(r.VolumeContext, key) }
}

func TestMalformedUnpublish(t *testing.T) {
	n := newNode(t)
	emptyDir := filepath.Join(n.KubeletDir(), "pods/uid-other/volumes/kubernetes.io~empty-dir/cache")
	if err := os.MkdirAll(emptyDir, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct{ name, id, target, want string }{
		{"no id", "", "/x", "volume_id: Required value"},
		{"no target", "csi-1", "", "target_path: Required value"},
		{"id with a slash", "../x", "/x", "volume_id: Invalid value"},
		{"target elsewhere", "csi-1", "/etc", "target_path: "},
		{"target with dots", "csi-1", n.KubeletDir() + "/pods/../../state", "target_path: "},
		{"relative target", "csi-1", "x", "target_path: "},
		{"a pod's emptyDir", "csi-1", emptyDir, fmt.Sprintf("target_path: Invalid value: %q: must be %s/pods/<pod UID>/volumes/kubernetes.io~csi/<volume name>/mount", emptyDir, n.KubeletDir())},
		{"target with a zero byte", "csi-1", n.Target(n.short("app")) + "\x00", "target_path: Invalid value: "},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := n.Node().NodeUnpublishVolume(t.Context(), &csi.NodeUnpublishVolumeRequest{VolumeId: tc.id, TargetPath: tc.target})
			wantStatus(t, err, codes.InvalidArgument, tc.want)
		})
	}
	if _, err := os.Stat(emptyDir); err != nil {
		t.Error(err)
	}
}

func TestRefusedAttributes(t *testing.T) {
	n := newNode(t)
	n.configMap("app", map[string]string{"key": n.canary()})
	n.secret("app", map[string]string{"key": n.canary()})
	items := func(list string) map[string]string {
		return map[string]string{"sources": "[{configMap: {name: app, items: " + list + "}}]"}
	}
	for _, tc := range []struct {
		name       string
		attributes map[string]string
		want       []string
	}{
		{"nothing named", nil, []string{"configMap", "secret", "sources"}},
		{"both named", map[string]string{"configMap": "app", "secret": "app"}, []string{"secret: Forbidden"}},
		{"list and short form", map[string]string{"configMap": "app", "sources": "[{configMap: {name: app}}]"}, []string{"configMap: Forbidden"}},
		{"unknown attribute", map[string]string{"configmap": "app"}, []string{"configmap: ", "unknown"}},
		{"unknown attribute beside a known", map[string]string{"configMap": "app", "refresh": "1s"}, []string{"refresh: ", "unknown"}},
		{"every fault at once", map[string]string{"configMap": "App!", "defaultMode": "9", "optional": "yes"}, []string{"configMap: ", "defaultMode: ", "optional: "}},
		{"bad name", map[string]string{"configMap": "App"}, []string{"configMap: Invalid value"}},
		{"empty name", map[string]string{"secret": ""}, []string{"secret: Required value"}},
		{"optional is not a boolean", map[string]string{"configMap": "app", "optional": "1"}, []string{"optional: Unsupported value", "true"}},
		{"mode without a zero", map[string]string{"configMap": "app", "defaultMode": "644"}, []string{"defaultMode: Invalid value", "leading zero"}},
		{"mode not octal", map[string]string{"configMap": "app", "defaultMode": "0888"}, []string{"defaultMode: Invalid value", "octal"}},
		{"mode too large", map[string]string{"configMap": "app", "defaultMode": "01777"}, []string{"defaultMode: Invalid value", "0777"}},
		{"item mode too large", items("[{key: key, path: key, mode: 512}]"), []string{"sources[0].configMap.items[0].mode: Invalid value", "511"}},
		{"not YAML", map[string]string{"sources": "["}, []string{"sources: Invalid value", "YAML"}},
		{"not a list", map[string]string{"sources": "configMap: {name: app}"}, []string{"sources: Invalid value", "a list"}},
		{"no source", map[string]string{"sources": "[]"}, []string{"sources: Required value"}},
		{"empty source", map[string]string{"sources": "[{}]"}, []string{"sources[0]: Required value"}},
		{"two kinds in one source", map[string]string{"sources": "[{configMap: {name: app}, secret: {name: app}}]"}, []string{"sources[0]: Invalid value"}},
		{"unknown field", map[string]string{"sources": "[{configMap: {name: app, nmae: x}}]"}, []string{"sources[0].configMap.nmae: ", "unknown field"}},
		{"field twice", map[string]string{"sources": "[{configMap: {name: app, name: app}}]"}, []string{"sources", "name"}},
		{"name is a number", map[string]string{"sources": "[{configMap: {name: 1}}]"}, []string{"sources[0].configMap.name: Invalid value", "string"}},
		{"no name", map[string]string{"sources": "[{secret: {optional: true}}]"}, []string{"sources[0].secret.name: Required value"}},
		{"item without key", items("[{path: x}]"), []string{"sources[0].configMap.items[0].key: Required value"}},
		{"item without path", items("[{key: key}]"), []string{"sources[0].configMap.items[0].path: Required value"}},
		{"path leads out", items("[{key: key, path: ok}, {key: key, path: ../x}]"), []string{`sources[0].configMap.items[1].path: Invalid value: "../x": must not contain ".."`}},
		{"path leads out inside", items("[{key: key, path: a/../../x}]"), []string{`items[0].path: Invalid value: "a/../../x": must not contain ".."`}},
		{"absolute path", items("[{key: key, path: /x}]"), []string{"items[0].path: Invalid value", "relative"}},
		{"path of the writer's own", items("[{key: key, path: ..data}]"), []string{"items[0].path: Invalid value", `".."`}},
		{"path element too long", items("[{key: key, path: " + strings.Repeat("x", 256) + "}]"), []string{"items[0].path: Invalid value", "255"}},
		{"path too long", items("[{key: key, path: " + strings.Repeat("x/", 2048) + "x}]"), []string{"items[0].path: Invalid value", "4096"}},
		{"equal paths", items("[{key: key, path: x}, {key: key, path: x}]"), []string{"items[1].path: Invalid value", "conflicting duplicate paths"}},
		{"equal paths of two sources", map[string]string{"sources": "[{configMap: {name: app, items: [{key: key, path: x}]}}, {secret: {name: app, items: [{key: key, path: ./x}]}}]"}, []string{"sources[1].secret.items[0].path: Invalid value", "conflicting duplicate paths"}},
		{"file where a directory must be", items("[{key: key, path: x}, {key: key, path: x/y}]"), []string{"items[1].path: Invalid value"}},
		{"another namespace", map[string]string{"configMap": "app", "namespace": "default"}, []string{"namespace: "}},
		{"another namespace in the list", map[string]string{"sources": "[{secret: {name: app, namespace: default}}]"}, []string{"sources[0].secret.namespace: "}},
		{"uid", map[string]string{"configMap": "app", "uid": "root"}, []string{`uid: Invalid value: "root": must be a decimal number`}},
		{"gid", map[string]string{"configMap": "app", "gid": "-1"}, []string{`gid: Invalid value: "-1": must be a decimal number`}},
		{"updatePolicy", map[string]string{"configMap": "app", "updatePolicy": "Never"}, []string{`updatePolicy: Unsupported value: "Never": supported values: "Live", "Pinned"`}},
		{"writeStrategy", map[string]string{"configMap": "app", "writeStrategy": "inPlace"}, []string{`writeStrategy: Unsupported value: "inPlace"`}},
		{"onDelete", map[string]string{"configMap": "app", "onDelete": "Delete"}, []string{`onDelete: Unsupported value: "Delete": supported values: "Keep", "Remove"`}},
		{"env", map[string]string{"sources": "[{env: {path: x, format: json}}]"}, []string{`sources[0].env.format: Unsupported value: "json"`}},
		{"variable of a resource", map[string]string{"sources": "[{env: {path: x, env: [{name: A, valueFrom: {resourceFieldRef: {resource: limits.cpu}}}]}}]"}, []string{"sources[0].env.env[0].valueFrom.resourceFieldRef: Forbidden: a volume can't know its value"}},
		{"variable of another namespace", map[string]string{"sources": "[{env: {path: x, envFrom: [{secretRef: {name: s, namespace: default}}]}}]"}, []string{`sources[0].env.envFrom[0].secretRef.namespace: Invalid value: "default"`}},
		{"podEnv", map[string]string{"sources": "[{podEnv: {path: x}}]"}, []string{"sources[0].podEnv.container: Required value"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			wantStatus(t, n.Publish(t.Context(), n.volume(tc.attributes)), codes.InvalidArgument, tc.want...)
		})
	}
	n.wantNothingLeft()
}

func TestMissingAfterTheWait(t *testing.T) {
	n := newNode(t, "--publish-wait=300ms")
	n.configMap("app", map[string]string{"key": n.canary()})
	n.secret("db", map[string]string{"key": n.canary()})
	before := watches(t.Context(), t, "configmaps")
	for _, tc := range []struct {
		name    string
		sources string
		want    []string
	}{
		{"ConfigMap", "[{configMap: {name: none}}]", []string{"ConfigMap", n.namespace + "/none", "not found"}},
		{"Secret", "[{secret: {name: none}}]", []string{"Secret", n.namespace + "/none", "not found"}},
		{"key of a ConfigMap", "[{configMap: {name: app, items: [{key: none, path: x}]}}]", []string{"configmap references non-existent config key: none"}},
		{"key of a Secret", "[{secret: {name: db, items: [{key: none, path: x}]}}]", []string{"references non-existent secret key: none"}},
		{"all of them", "[{configMap: {name: none}}, {secret: {name: none2}}]", []string{n.namespace + "/none", n.namespace + "/none2"}},
		{"key where another source has a directory", "[{configMap: {name: app}}, {secret: {name: db, items: [{key: key, path: key/x}]}}]", nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			want := codes.NotFound
			if tc.want == nil {
				want = codes.InvalidArgument
			}
			wantStatus(t, n.finalAnswer(n.volume(map[string]string{"sources": tc.sources})), want, tc.want...)
		})
	}
	n.wantNothingLeft()
	wantWatches(t, "configmaps", before)
}

func TestForbiddenTellsNotWhatExists(t *testing.T) {
	n := newNodeAs(t, shared.powerless, "--publish-wait=110s")
	n.secret("there", map[string]string{"key": n.canary()})
	var texts []string
	for _, name := range []string{"there", "absent"} {
		v := n.volume(map[string]string{"secret": name})
		begin := time.Now()
		err := n.Publish(t.Context(), v)
		wantStatus(t, err, codes.PermissionDenied, "Secret", name)
		if took := time.Since(begin); took > soon {
			t.Errorf("the refusal took %s: it should not wait for what waiting does not change", took)
		}
		if err != nil {
			texts = append(texts, strings.ReplaceAll(err.Error(), name, "NAME"))
		}
	}
	if len(texts) == 2 && texts[0] != texts[1] {
		t.Errorf("the texts differ:\n%s\n%s", texts[0], texts[1])
	}
	n.wantNothingLeft()
}

func TestUnavailableWithoutAPIServer(t *testing.T) {
	n := newNode(t, "--publish-wait=1s")
	n.configMap("app", map[string]string{"key": n.canary()})
	if err := shared.StopAPIServer(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := shared.StartAPIServer(t.Context()); err != nil {
			t.Fatal(err)
		}
	}()
	v := n.short("app")
	wantStatus(t, n.Publish(t.Context(), v), codes.Unavailable, n.namespace+"/app")
	n.mustUnpublish(v)
	n.wantNothingLeft()
}

func TestSizeLimits(t *testing.T) {
	t.Parallel()
	n := newNode(t, "--max-volume-size=64Ki", "--max-total-size=116Ki")
	n.configMap("large", map[string]string{"key": strings.Repeat("x", 80<<10)})
	n.configMap("half", map[string]string{"key": strings.Repeat("x", 48<<10)})

	wantStatus(t, n.Publish(t.Context(), n.short("large")), codes.OutOfRange, "81920", "65536")
	n.wantNothingLeft()

	first, second := n.short("half"), n.short("half")
	n.mustPublish(first)
	n.mustPublish(second)
	third := n.short("half")
	wantStatus(t, n.Publish(t.Context(), third), codes.ResourceExhausted, "--max-total-size")
	n.wantMounts(2)
	n.mustUnpublish(first)
	n.mustPublish(third) // the answer was not final, so the kubelet tries again
	for _, v := range []*harness.Volume{second, third} {
		n.mustUnpublish(v)
	}
	n.wantNothingLeft()
}
