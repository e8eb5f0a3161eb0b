package integration

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/refvol/refvol/e2e/tools/faultproxy"
	"github.com/refvol/refvol/e2e/tools/harness"
)

// The samples' own namespaces: an attribute names them, and a digest of them.
const (
	onMountNamespace = "onmount"
	onMountSource    = "onmount-source"
)

// onMountVolume describes the volume that a sample shows, of a pod of its own.
func onMountVolume(strategy, uid string) *harness.Volume {
	v := harness.NewVolume(onMountNamespace, strings.ToLower(strategy), map[string]string{"writeStrategy": strategy, "sources": `
- configMap: {name: own}
- secret: {name: revoked, namespace: onmount-source}
- secret: {name: kept, namespace: onmount-source}
- env: {path: deep/all.env, envFrom: [{configMapRef: {name: own}}, {secretRef: {name: kept, namespace: onmount-source}}]}
`})
	v.UID = "8c0a5bd5-5c8e-4b0c-9d7e-" + uid
	return v
}

func onMountVolumes() map[string]*harness.Volume {
	return map[string]*harness.Volume{
		"Atomic":  onMountVolume("Atomic", "000000000001"),
		"InPlace": onMountVolume("InPlace", "000000000002"),
	}
}

// onMountEntry is a name on a volume. Of the attributes' names the prefix is left out. In texts
// stands {{generation}} for the directory that ..data points at, and {{NAME}} for the UID and the
// resourceVersion of the object of that name, which only the API server chooses.
type onMountEntry struct {
	Path       string            `json:"path"`
	Mode       string            `json:"mode"`
	Link       string            `json:"link,omitempty"`
	Content    string            `json:"content,omitempty"`
	Attributes map[string]string `json:"attributes,omitempty"`
}

// onMountSample is what a release left on a volume of each write strategy.
type onMountSample map[string][]onMountEntry

// onMountNode is a node with what the samples need at the API server.
type onMountNode struct {
	*proxied
	revoke func()
}

func newOnMountNode(t *testing.T) *onMountNode {
	t.Helper()
	for _, name := range []string{onMountNamespace, onMountSource} {
		ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if _, err := shared.Client().CoreV1().Namespaces().Create(t.Context(), ns, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
			t.Fatal(err)
		}
	}
	consent := func(name string) (revoke func()) {
		return allow(t, onMountSource, rule("secret", "get", name), account(onMountNamespace, "default"))
	}
	n := &onMountNode{revoke: sync.OnceFunc(consent("revoked"))}
	t.Cleanup(n.revoke)
	t.Cleanup(consent("kept"))
	n.proxied = newProxiedAs(t, componentAccount(t, "cross-namespace"), faultproxy.Options{}, "--cross-namespace", "--resync-interval=1s")
	n.namespace = onMountNamespace
	return n
}

// put has all objects hold a text, and returns for each the text that {{NAME}} stands for.
func (n *onMountNode) put(text string) map[string]string {
	n.t.Helper()
	stands := map[string]string{}
	note := func(o metav1.Object) {
		stands["{{"+o.GetName()+"}}"] = string(o.GetUID()) + " " + o.GetResourceVersion()
	}
	note(n.configMap("own", map[string]string{"own": text}))
	n.namespace = onMountSource
	note(n.secret("revoked", map[string]string{"revoked": text}))
	note(n.secret("kept", map[string]string{"kept": text}))
	n.namespace = onMountNamespace
	return stands
}

// TestOnMountFormatIsThatOfARelease publishes the samples' volumes: what is on them is what the
// newest sample has. A format that is to change needs a sample of its own, beside the older ones.
func TestOnMountFormatIsThatOfARelease(t *testing.T) {
	n := newOnMountNode(t)
	stands := n.put("first")
	_, samples := onMountSamples(t)
	got := onMountSample{}
	for strategy, v := range onMountVolumes() {
		n.publishesSoon(v)
		got[strategy] = n.describe(v, stands)
	}
	if newest := samples[len(samples)-1]; !reflect.DeepEqual(got, newest) {
		text, err := json.MarshalIndent(got, "", " ")
		t.Errorf("the volumes have another format than the newest sample. If that is meant, add this as testdata/onmount/vX.Y.Z.json, for the next release (%v):\n%s", err, text)
	}
	for _, v := range onMountVolumes() {
		n.mustUnpublish(v)
	}
}

// TestOnMountFormatsOfReleases starts the plugin on volumes as each release left them. It takes
// them over without the kubelet, knows which file shows which object while it can't read any
// Secret, and never shows an older state than the volume's record names.
func TestOnMountFormatsOfReleases(t *testing.T) {
	t.Parallel()
	names, samples := onMountSamples(t)
	for i, sample := range samples {
		t.Run(names[i], func(t *testing.T) {
			n := newOnMountNode(t)
			well := n.short("own") // which tells how volumes are mounted here
			stands := n.put("second")
			n.mustPublish(well)
			like := n.mountLike(well)
			n.mustKill()
			volumes := onMountVolumes()
			for strategy, v := range volumes {
				n.leave(v, sample[strategy], like, stands)
			}
			// The same, but its files show what the API server does not have yet.
			ahead := onMountVolume("Atomic", "000000000003")
			ahead.Pod = "ahead"
			uid, _, _ := strings.Cut(stands["{{own}}"], " ")
			n.leave(ahead, pretendToBe(sample["Atomic"], volumes["Atomic"], ahead), like, map[string]string{
				"{{own}}": uid + " 999999999999", "{{revoked}}": stands["{{revoked}}"], "{{kept}}": stands["{{kept}}"],
			})

			n.proxy.InjectFor(faultproxy.ServerError, func(r faultproxy.Request) bool { return r.Resource == "secrets" })
			n.mustStart()
			n.revoke()
			for _, v := range volumes {
				n.loses(v, "revoked", withdrawn)
				n.wantContent(v, "kept", "first")
				n.wantContent(v, "deep/all.env", "kept=first\nown=first\n")
				n.wantContent(v, "own", "first")
			}
			// Without the source that is refused the rest can be shown again.
			n.heal()
			n.t.Cleanup(allow(t, onMountSource, rule("secret", "get", "revoked"), account(onMountNamespace, "default")))
			for _, v := range volumes {
				for _, key := range []string{"own", "kept", "revoked"} {
					n.arrives(v, key, "second", healed)
				}
				n.arrives(v, "deep/all.env", "kept=second\nown=second\n", healed)
			}
			n.hasCondition(ahead, "older")
			n.wantContent(ahead, "own", "first")
			for _, v := range append(slices.Collect(maps.Values(volumes)), ahead, well) {
				n.mustUnpublish(v)
			}
			n.wantNothingLeft()
		})
	}
}

// onMountSamples returns the samples and their releases' names, oldest first. Nothing is released yet: the one
// sample is the next release's.
func onMountSamples(t *testing.T) (names []string, samples []onMountSample) {
	t.Helper()
	files, err := filepath.Glob("testdata/onmount/v*.json")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var sample onMountSample
		if err := json.Unmarshal(text, &sample); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		names, samples = append(names, strings.TrimSuffix(filepath.Base(file), ".json")), append(samples, sample)
	}
	return names, samples
}
