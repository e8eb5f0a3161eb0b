package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/refvol/refvol/e2e/tools/harness"
)

// soon is how long a change may take on a busy machine, where the test is not about time.
const soon = time.Minute

// hasCondition waits until the plugin's log says of a volume that it shows what it should,
// with an empty text, or that something with this text keeps it from that.
func (n *node) hasCondition(v *harness.Volume, text string) {
	n.t.Helper()
	harness.Eventually(n.t, soon, func() error {
		problem, err := n.Problem(v)
		if err != nil {
			return err
		}
		if (problem != "") != (text != "") || !strings.Contains(problem, text) {
			return fmt.Errorf("the problem is %q, want %q", problem, text)
		}
		return nil
	})
}

func (n *node) deleteSecret(name string) {
	n.t.Helper()
	if err := shared.Client().CoreV1().Secrets(n.namespace).Delete(n.t.Context(), name, metav1.DeleteOptions{}); err != nil {
		n.t.Fatal(err)
	}
}

// The files of a required object that is deleted stay, and follow its successor.
func TestRequiredObjectDeleted(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	value := n.canary()
	n.secret("db", map[string]string{"key": value})
	v := n.volume(map[string]string{"secret": "db"})
	n.mustPublish(v)
	n.hasCondition(v, "")
	n.deleteSecret("db")
	gone := `Secret "` + n.namespace + `/db" not found`
	n.hasEvent(v, "RefDeleted", gone)
	n.hasCondition(v, gone)
	n.wantContent(v, "key", value)
	value = n.canary()
	n.secret("db", map[string]string{"key": value, "more": value})
	n.arrives(v, "key", value, soon)
	n.arrives(v, "more", value, soon)
	n.hasCondition(v, "")
	n.mustUnpublish(v)
}

// The files of an optional object come and go with it, and nothing is wrong with that.
func TestOptionalObjectDeleted(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	value, other := n.canary(), n.canary()
	n.secret("db", map[string]string{"key": value})
	n.configMap("app", map[string]string{"other": other})
	v := n.volume(map[string]string{"sources": "- configMap: {name: app}\n- secret: {name: db, optional: true, items: [{key: key, path: d/key}, {key: late, path: late}]}\n"})
	n.mustPublish(v)
	n.wantContent(v, "d/key", value)
	n.deleteSecret("db")
	n.vanishes(v, "d", soon)
	n.wantContent(v, "other", other)
	n.hasCondition(v, "")
	value = n.canary()
	n.secret("db", map[string]string{"key": value, "late": value})
	n.arrives(v, "d/key", value, soon)
	n.arrives(v, "late", value, soon)
	n.mustUnpublish(v)
}

// Without a key that its mapping requires, a volume keeps the whole old generation.
func TestRequiredKeyRemoved(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	a, b := n.canary(), n.canary()
	n.configMap("app", map[string]string{"a": a, "b": b})
	v := n.volume(map[string]string{"configMap": "app", "items": "[{key: a, path: a}, {key: b, path: d/b}]"})
	n.mustPublish(v)
	generation, err := os.Readlink(filepath.Join(n.Target(v), "..data"))
	if err != nil {
		t.Fatal(err)
	}
	n.configMap("app", map[string]string{"a": n.canary()})
	missing := "configmap references non-existent config key: b"
	n.hasEvent(v, "RefKeyNotFound", missing)
	n.hasCondition(v, missing)
	n.wantContent(v, "a", a)
	n.wantContent(v, "d/b", b)
	if now, err := os.Readlink(filepath.Join(n.Target(v), "..data")); err != nil || now != generation {
		t.Errorf("the generation is %s, %v, and was %s", now, err, generation)
	}
	a = n.canary()
	n.configMap("app", map[string]string{"a": a, "b": b})
	n.arrives(v, "a", a, soon)
	n.hasCondition(v, "")
	n.mustUnpublish(v)
}

// A new pod sees the data of an immutable object that was created anew, and then the
// pods that have been running follow.
func TestImmutableObjectRecreated(t *testing.T) {
	n := newNode(t)
	create := func(value string) {
		n.applyConfigMap(&corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Name: "app"}, Data: map[string]string{"key": value}, Immutable: new(true),
		})
	}
	first, second := n.canary(), n.canary()
	create(first)
	running := n.short("app")
	n.mustPublish(running)
	n.deleteConfigMap("app")
	create(second)
	n.wantContent(running, "key", first)
	started := n.short("app")
	n.mustPublish(started)
	n.wantContent(started, "key", second)
	n.arrives(running, "key", second, soon)
	n.mustUnpublish(running)
	n.mustUnpublish(started)
}

// Where in a ConfigMap a key is makes no difference.
func TestKeyMovesToBinaryData(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	text, binary, back := n.canary(), n.canary()+"\xff\x00", n.canary()
	n.configMap("app", map[string]string{"key": text, "other": text})
	all, mapped := n.short("app"), n.volume(map[string]string{"configMap": "app", "items": "[{key: key, path: d/key}]"})
	n.mustPublish(all)
	n.mustPublish(mapped)
	n.applyConfigMap(&corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "app"}, Data: map[string]string{"other": text}, BinaryData: map[string][]byte{"key": []byte(binary)},
	})
	n.arrives(all, "key", binary, soon)
	n.arrives(mapped, "d/key", binary, soon)
	n.wantContent(all, "other", text)
	n.configMap("app", map[string]string{"key": back})
	n.arrives(all, "key", back, soon)
	n.arrives(mapped, "d/key", back, soon)
	n.mustUnpublish(all)
	n.mustUnpublish(mapped)
}

// A name may be a file, then a directory, then a file again. While it would have to be
// both, the volume stays as it is.
func TestPathBecomesADirectoryAndBack(t *testing.T) {
	t.Parallel()
	for _, strategy := range []string{"Atomic", "InPlace"} {
		t.Run(strategy, func(t *testing.T) {
			n := newNode(t)
			file, nested := n.canary(), n.canary()
			n.configMap("app", map[string]string{"conf": file})
			v := n.volume(map[string]string{
				"writeStrategy": strategy,
				"sources":       "- configMap: {name: app}\n- secret: {name: db, optional: true, items: [{key: key, path: conf/d/key}]}\n",
			})
			n.mustPublish(v)
			n.wantContent(v, "conf", file)
			n.secret("db", map[string]string{"key": nested})
			both := `path "conf/d/key" can't be shown: "conf" is a file of the same volume`
			n.hasEvent(v, "VolumeUpdateFailed", both)
			n.hasCondition(v, both)
			n.wantContent(v, "conf", file)
			n.configMap("app", map[string]string{"other": file})
			n.arrives(v, "conf/d/key", nested, soon)
			n.arrives(v, "other", file, soon)
			n.hasCondition(v, "")
			n.deleteSecret("db")
			file = n.canary()
			n.configMap("app", map[string]string{"conf": file})
			n.arrives(v, "conf", file, soon)
			n.hasCondition(v, "")
			n.mustUnpublish(v)
		})
	}
}
