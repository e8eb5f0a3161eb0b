package integration

import (
	"fmt"
	"maps"
	"testing"

	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/uuid"

	"github.com/refvol/refvol/e2e/tools/harness"
)

// ownConfigMap and ownSecret are volumes of the pod's own, each of one object, and so is
// projected, of several.
func ownConfigMap(name string, s corev1.ConfigMapVolumeSource, object string) corev1.Volume {
	s.Name = object
	return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{ConfigMap: &s}}
}

func ownSecret(name string, s corev1.SecretVolumeSource, object string) corev1.Volume {
	s.SecretName = object
	return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{Secret: &s}}
}

func projected(name string, mode *int32, sources ...corev1.VolumeProjection) corev1.Volume {
	return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: sources, DefaultMode: mode}}}
}

func configMapIn(object string, optional bool, items ...corev1.KeyToPath) corev1.VolumeProjection {
	ref := corev1.LocalObjectReference{Name: object}
	return corev1.VolumeProjection{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: ref, Optional: &optional, Items: items}}
}

func secretIn(object string, optional bool, items ...corev1.KeyToPath) corev1.VolumeProjection {
	ref := corev1.LocalObjectReference{Name: object}
	return corev1.VolumeProjection{Secret: &corev1.SecretProjection{LocalObjectReference: ref, Optional: &optional, Items: items}}
}

// showing returns a volume of a new pod that shows what is beside it.
func (n *node) showing(attributes map[string]string, beside ...corev1.Volume) *harness.Volume {
	v := n.volume(attributes)
	v.Beside = beside
	return v
}

// comesToShow waits until a volume shows these files: each is its mode and content.
func (n *node) comesToShow(name string, v *harness.Volume, want map[string]string) {
	n.t.Helper()
	harness.Eventually(n.t, soon, func() error {
		files, err := harness.Files(n.Target(v))
		if err != nil {
			return err
		}
		got := map[string]string{}
		for path, file := range files {
			content, err := n.content(v, path)
			if err != nil {
				return err
			}
			got[path] = fmt.Sprintf("%04o %s", file.Mode.Perm(), content)
		}
		if !maps.Equal(got, want) {
			return fmt.Errorf("%s: files are %q, want %q", name, got, want)
		}
		return nil
	})
}

// TestVolumeSource shows each type of a pod's own volume, before and after a change, and after
// one that is made while the plugin is down.
func TestVolumeSource(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	readable, private, none := int32(0o444), int32(0o400), int32(0)
	items := []corev1.KeyToPath{{Key: "a", Path: "d/a", Mode: &private}, {Key: "b", Path: "b"}, {Key: "a", Path: "x"}, {Key: "b", Path: "./x"}}
	cases := []struct {
		name       string
		attributes map[string]string
		beside     []corev1.Volume
		group      string
		// want is made of what the keys a and b of the ConfigMap and c of the Secret hold.
		want func(a, b, c string) map[string]string
	}{
		{
			"configMap",
			map[string]string{"volume": "own"},
			[]corev1.Volume{ownConfigMap("own", corev1.ConfigMapVolumeSource{}, "app")},
			"",
			func(a, b, _ string) map[string]string { return map[string]string{"a": "0644 " + a, "b": "0644 " + b} },
		},
		{
			"configMap with items, one path twice",
			map[string]string{"volume": "own"},
			[]corev1.Volume{ownConfigMap("own", corev1.ConfigMapVolumeSource{Items: items, DefaultMode: &readable}, "app")},
			"",
			func(a, b, _ string) map[string]string {
				return map[string]string{"d/a": "0400 " + a, "b": "0444 " + b, "x": "0444 " + b}
			},
		},
		{
			"secret",
			map[string]string{"volume": "own"},
			[]corev1.Volume{ownSecret("own", corev1.SecretVolumeSource{DefaultMode: &none}, "db")},
			"",
			func(_, _, c string) map[string]string { return map[string]string{"b": "0000 second", "c": "0000 " + c} },
		},
		{
			"secret with an optional key and a group",
			map[string]string{"volume": "own"},
			[]corev1.Volume{ownSecret("own", corev1.SecretVolumeSource{
				Items: []corev1.KeyToPath{{Key: "c", Path: "c"}, {Key: "none", Path: "none"}}, Optional: new(true), DefaultMode: &private,
			}, "db")},
			"2000",
			func(_, _, c string) map[string]string { return map[string]string{"c": "0440 " + c} },
		},
		{"optional configMap that is missing", map[string]string{"volume": "own"}, []corev1.Volume{ownConfigMap("own", corev1.ConfigMapVolumeSource{Optional: new(true)}, "none")}, "", func(_, _, _ string) map[string]string { return nil }},
		{"projected of nothing", map[string]string{"volume": "own"}, []corev1.Volume{projected("own", nil)}, "", func(_, _, _ string) map[string]string { return nil }},
		{
			"projected, the later wins",
			map[string]string{"volume": "own"},
			[]corev1.Volume{projected("own", &private, configMapIn("app", false), secretIn("none", true), secretIn("db", false), configMapIn("app", false, corev1.KeyToPath{Key: "a", Path: "c", Mode: &readable}))},
			"",
			func(a, _, _ string) map[string]string {
				return map[string]string{"a": "0400 " + a, "b": "0400 second", "c": "0444 " + a}
			},
		},
		{
			"volumes and others in their order, each with its mode",
			map[string]string{"sources": "[{volume: {name: first}}, {secret: {name: db}}, {volume: {name: last}}, {env: {path: e, env: [{name: E, value: e}]}}]"},
			[]corev1.Volume{
				projected("first", &private, configMapIn("app", false), secretIn("db", false, corev1.KeyToPath{Key: "c", Path: "first"})),
				ownConfigMap("last", corev1.ConfigMapVolumeSource{DefaultMode: &readable, Items: []corev1.KeyToPath{{Key: "a", Path: "c"}}}, "app"),
			},
			"",
			func(a, _, c string) map[string]string {
				return map[string]string{"a": "0400 " + a, "b": "0644 second", "c": "0444 " + a, "first": "0400 " + c, "e": "0644 E=e\n"}
			},
		},
		{
			"the attributes' mode and owner",
			map[string]string{"volume": "own", "defaultMode": "0640", "uid": "1000", "writeStrategy": "InPlace"},
			[]corev1.Volume{ownConfigMap("own", corev1.ConfigMapVolumeSource{Items: items[:2], DefaultMode: &readable}, "app")},
			"2000",
			func(a, b, _ string) map[string]string { return map[string]string{"d/a": "0400 " + a, "b": "0640 " + b} },
		},
	}
	put := func() (a, b, c string) {
		a, b, c = n.canary(), n.canary(), n.canary()
		n.configMap("app", map[string]string{"a": a, "b": b})
		n.secret("db", map[string]string{"b": "second", "c": c})
		return a, b, c
	}
	a, b, c := put()
	volumes := make([]*harness.Volume, len(cases))
	for i, test := range cases {
		volumes[i] = n.showing(test.attributes, test.beside...)
		volumes[i].MountGroup = test.group
		n.mustPublish(volumes[i])
	}
	pinned := n.showing(map[string]string{"volume": "own", "updatePolicy": "Pinned"}, ownConfigMap("own", corev1.ConfigMapVolumeSource{}, "app"))
	n.mustPublish(pinned)
	stays := map[string]string{"a": "0644 " + a, "b": "0644 " + b}
	all := func() {
		t.Helper()
		for i, test := range cases {
			n.comesToShow(test.name, volumes[i], test.want(a, b, c))
		}
	}
	all()
	a, b, c = put()
	all()
	n.mustKill()
	a, b, c = put()
	n.mustStart()
	all()
	n.comesToShow("pinned", pinned, stays)
	n.mustUnpublish(pinned)
	for _, v := range volumes {
		n.mustUnpublish(v)
	}
	n.wantNothingLeft()
}

// TestVolumeSourceWaits: what the pod's own volume requires holds the pod, and what is missing
// is told by its place in the pod's spec.
func TestVolumeSourceWaits(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.configMap("app", map[string]string{"a": n.canary()})
	late := n.canary()
	v := n.showing(map[string]string{"volume": "own"},
		corev1.Volume{Name: "scratch", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
		projected("own", nil, configMapIn("app", false, corev1.KeyToPath{Key: "a", Path: "a"}), secretIn("late", false, corev1.KeyToPath{Key: "b", Path: "b"})))
	answer := n.publishing(v)
	n.hasEvent(v, "RefNotFound", `spec.volumes[1].projected.sources[1].secret: Secret "`+n.namespace+`/late" not found`)
	n.secret("late", map[string]string{"another": "x"})
	n.hasEvent(v, "RefKeyNotFound", `spec.volumes[1].projected.sources[1].secret: Secret "`+n.namespace+`/late": references non-existent secret key: b`)
	n.secret("late", map[string]string{"b": late})
	if err := n.answer(answer, soon); err != nil {
		t.Fatal(err)
	}
	n.wantContent(v, "b", late)

	// As with the kubelet, the files of a required object stay when it is deleted, also over a
	// restart.
	n.mustKill()
	n.deleteSecret("late")
	changed := n.canary()
	n.configMap("app", map[string]string{"a": changed})
	n.mustStart()
	n.hasCondition(v, `spec.volumes[1].projected.sources[1].secret: Secret "`+n.namespace+`/late" not found`)
	n.wantContent(v, "b", late)
	late = n.canary()
	n.secret("late", map[string]string{"b": late})
	n.arrives(v, "b", late, soon)
	n.wantContent(v, "a", changed)
	n.mustUnpublish(v)
	n.wantNothingLeft()
}

func TestVolumeSourceRefusals(t *testing.T) {
	n := newNode(t, "--publish-wait=300ms")
	n.configMap("app", map[string]string{"a": n.canary()})
	item := func(path string) []corev1.KeyToPath { return []corev1.KeyToPath{{Key: "a", Path: path}} }
	own := ownConfigMap("own", corev1.ConfigMapVolumeSource{}, "app")
	with := func(source corev1.VolumeProjection) corev1.Volume {
		return projected("own", nil, configMapIn("app", false), source)
	}
	const (
		onlyTypes   = "Forbidden: a volume source shows a configMap, secret or projected volume; mount this one itself"
		onlySources = "Forbidden: a volume source shows configMap and secret sources only; move this one to another projected volume, and mount that beside it"
	)
	short := map[string]string{"volume": "own"}
	list := func(sources string) map[string]string { return map[string]string{"sources": sources} }
	for _, tc := range []struct {
		name       string
		attributes map[string]string
		beside     []corev1.Volume
		want       string
	}{
		{"no such volume", list("[{volume: {name: none}}]"), []corev1.Volume{own}, `sources[0].volume.name: the pod has no volume "none"`},
		{"itself", map[string]string{"volume": "settings"}, []corev1.Volume{own}, "volume: spec.volumes[1].csi: " + onlyTypes},
		{"another CSI volume", short, []corev1.Volume{{Name: "own", VolumeSource: corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{Driver: "csi.example.org"}}}}, "volume: spec.volumes[0].csi: " + onlyTypes},
		{"another type", short, []corev1.Volume{{Name: "own", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}, "volume: spec.volumes[0].emptyDir: " + onlyTypes},
		{"the fields of the pod", short, []corev1.Volume{with(corev1.VolumeProjection{DownwardAPI: &corev1.DownwardAPIProjection{}})}, "volume: spec.volumes[0].projected.sources[1].downwardAPI: " + onlySources},
		{"the pod's token", list("[{configMap: {name: app}}, {volume: {name: own}}]"), []corev1.Volume{with(corev1.VolumeProjection{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "t"}})}, "sources[1].volume.name: spec.volumes[0].projected.sources[1].serviceAccountToken: " + onlySources},
		{"a path of another source", list("[{volume: {name: own}}, {configMap: {name: app, items: [{key: a, path: x}]}}]"), []corev1.Volume{ownConfigMap("own", corev1.ConfigMapVolumeSource{Items: item("x")}, "app")}, `sources[1].configMap.items[0].path: Invalid value: "x": conflicting duplicate paths: also the path of spec.volumes[0].configMap.items[0].path`},
		{"a file where a directory must be", list("[{volume: {name: own}}, {configMap: {name: app, items: [{key: a, path: x/a}]}}]"), []corev1.Volume{ownConfigMap("own", corev1.ConfigMapVolumeSource{Items: item("x")}, "app")}, `sources[1].configMap.items[0].path: Invalid value: "x/a": must not lie below "x", which spec.volumes[0].configMap.items[0].path makes a file`},
		{"a file and a directory in one volume", short, []corev1.Volume{ownConfigMap("own", corev1.ConfigMapVolumeSource{Items: append(item("x"), item("x/a")...)}, "app")}, `path "x/a" can't be shown: "x" is a file of the same volume`},
		{"twice", list("[{volume: {name: own}}, {volume: {name: own}}]"), []corev1.Volume{own}, `sources[1].volume.name: Invalid value: "own": must not be shown twice`},
		{"too many objects", short, []corev1.Volume{projected("own", nil, secretsIn(257)...)}, ": Too many: 257: a volume may name at most 256 ConfigMaps and Secrets"},
		{"with items", map[string]string{"volume": "own", "items": "[{key: a, path: a}]"}, []corev1.Volume{own}, "items: Forbidden: must not be set beside volume"},
		{"optional", map[string]string{"volume": "own", "optional": "true"}, []corev1.Volume{own}, "optional: Forbidden: must not be set beside volume"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			wantStatus(t, n.finalAnswer(n.showing(tc.attributes, tc.beside...)), codes.InvalidArgument, tc.want)
		})
	}

	// The API server has a static pod under another UID. The kubelet tells its own.
	for at, attributes := range map[string]map[string]string{
		"volume": short, "sources[0].podEnv.container": list("[{podEnv: {path: e, container: main}}]"),
	} {
		static := n.showing(map[string]string{"configMap": "app"}, own)
		n.publishesSoon(static)
		n.mustUnpublish(static)
		n.changePod(static, func(pod *corev1.Pod) *corev1.Pod {
			pod.UID = uuid.NewUUID()
			pod.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: static.UID}
			return pod
		})
		static.Attributes, static.Unknown = attributes, true
		wantStatus(t, n.finalAnswer(static), codes.InvalidArgument, at+": read pod "+n.namespace+"/"+static.Pod+": ", "a static pod")
	}
	n.wantNothingLeft()

	powerless := newNodeAs(t, shared.powerless, "--publish-wait=1s")
	powerless.namespace = n.namespace
	wantStatus(t, powerless.finalAnswer(powerless.showing(short, own)), codes.PermissionDenied, `volume: read pod `, "is forbidden")
	powerless.wantNothingLeft()
}

// secretsIn returns so many sources of Secrets.
func secretsIn(count int) []corev1.VolumeProjection {
	sources := make([]corev1.VolumeProjection, count)
	for i := range sources {
		sources[i] = secretIn(fmt.Sprint("s", i), true)
	}
	return sources
}

// TestPodIdentityOfAVolumeSource: with the pods' own tokens, what only the pod's own volume
// names takes a right, and the refusal says where it is named.
func TestPodIdentityOfAVolumeSource(t *testing.T) {
	t.Parallel()
	n := newPodNode(t)
	value := n.canary()
	n.secret("db", map[string]string{"password": value})
	v := n.volume(map[string]string{"volume": "own"})
	v.ServiceAccount, v.Beside = "web", []corev1.Volume{projected("own", nil, secretIn("db", false))}
	n.pod(v)
	refusal := fmt.Sprintf(`spec.volumes[0].projected.sources[0].secret: Forbidden: service account "web" of the pod may not get, list and watch Secret "%s/db"`, n.namespace)
	wantStatus(t, n.finalAnswer(v), codes.PermissionDenied, refusal)
	n.hasEvent(v, "RefForbidden", refusal)
	revoke := allow(t, n.namespace, readers("secret", "db"), account(n.namespace, "web"))
	harness.Eventually(t, soon, func() error { return n.Publish(t.Context(), v) })
	n.wantContent(v, "password", value)
	revoke()
	n.vanishes(v, "password", soon)
	n.hasCondition(v, refusal)
	n.mustUnpublish(v)
	n.wantNothingLeft()
}
