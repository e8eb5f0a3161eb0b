package manifests

import (
	"errors"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/refvol/refvol/e2e/tools/harness"
	"github.com/refvol/refvol/internal/must"
)

const (
	rolloutAnnotation = "refvol.dev/rollout"
	stagedPolicy      = "ValidatingAdmissionPolicy 'refvol-staged'"
)

type stagedChange struct {
	// before is the annotation, "" for none, and patch a merge patch.
	before, patch string
	// says are in the refusal; none if the change is allowed.
	says []string
}

func withShare(share string) string {
	return fmt.Sprintf(`{"metadata":{"annotations":{"refvol.dev/rollout":%q}},"data":{"key":"bmV3"}}`, share)
}

const onlyData, withoutShare = `{"data":{"key":"bmV3"}}`, `{"metadata":{"annotations":null},"data":{"key":"bmV3"}}`

func stagedChanges() map[string]stagedChange {
	refused := func(has string, more ...string) []string {
		return append([]string{
			"an object with the label refvol.dev/staged may change its data only together with the annotation refvol.dev/rollout at 0% or 1%",
			", in the same request; it has " + has + ". kubectl refvol rollout raises it", stagedPolicy,
		}, more...)
	}
	return map[string]stagedChange{
		"no annotation":                    {"", onlyData, refused("none")},
		"with 0%":                          {"", withShare("0%"), nil},
		"with 1%":                          {"", withShare("1%"), nil},
		"with 2%":                          {"", withShare("2%"), refused("2%")},
		"with 100%":                        {"", withShare("100%"), refused("100%")},
		"at 100%":                          {"100%", onlyData, refused("100%")},
		"at 100%, lowered to 50%":          {"100%", withShare("50%"), refused("50%")},
		"held":                             {"0%", onlyData, nil},
		"held, and given to all":           {"0%", withShare("100%"), refused("100%")},
		"held, and the annotation removed": {"0%", withoutShare, refused("none")},
		"a revert keeps the share":         {"10%", onlyData, nil},
		"a revert with a lower share":      {"10%", withShare("5%"), nil},
		"a revert with a higher share":     {"10%", withShare("11%"), refused("11%", ", or at most at the 10% of now, in")},
		"a revert without a share":         {"10%", withoutShare, refused("none", ", or at most at the 10% of now, in")},
		"no share":                         {"", withShare("ten"), refused("ten")},
		"no share, which is long":          {"", withShare("10% and more than that"), refused("10% and more tha")},
		"no share before":                  {"ten", withShare("10%"), refused("10%")},
		"no share before, held":            {"ten", withShare("0%"), nil},
		"leading zeros":                    {"", withShare("01%"), refused("01%")},
		"the annotation alone":             {"0%", `{"metadata":{"annotations":{"refvol.dev/rollout":"100%"}}}`, nil},
		"a label alone":                    {"", `{"metadata":{"labels":{"a":"b"}}}`, nil},
		"nothing":                          {"", `{}`, nil},
		"a new key":                        {"", `{"data":{"more":"bmV3"}}`, refused("none")},
		"no data":                          {"", `{"data":null}`, refused("none")},
		"the label goes as well":           {"", `{"metadata":{"labels":null},"data":{"key":"bmV3"}}`, refused("none")},
	}
}

// TestStaged: an object with the label changes its data only together with the annotation.
func TestStaged(t *testing.T) {
	install(t, "staged")
	core := shared.Client().CoreV1()
	labelled := map[string]string{"refvol.dev/staged": "true"}
	meta := func(name, share string) metav1.ObjectMeta {
		m := metav1.ObjectMeta{GenerateName: name}
		if share != "" {
			m.Annotations = map[string]string{rolloutAnnotation: share}
		}
		return m
	}
	configMap := func(share, patch string, change func(*corev1.ConfigMap)) error {
		object := &corev1.ConfigMap{ObjectMeta: meta("staged-", share), Data: map[string]string{"key": "old"}, BinaryData: map[string][]byte{"binary": []byte("old")}}
		made, err := core.ConfigMaps(consumer).Create(t.Context(), object, metav1.CreateOptions{})
		must.Do(t, err)
		made.Labels = labelled // the label alone is allowed
		if change != nil {
			change(made)
		}
		must.Get(core.ConfigMaps(consumer).Update(t.Context(), made, metav1.UpdateOptions{}))(t)
		_, err = core.ConfigMaps(consumer).Patch(t.Context(), made.Name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
		return errors.Join(err, core.ConfigMaps(consumer).Delete(t.Context(), made.Name, metav1.DeleteOptions{}))
	}
	secret := func(share, patch string) error {
		made, err := core.Secrets(consumer).Create(t.Context(), &corev1.Secret{ObjectMeta: meta("staged-", share), StringData: map[string]string{"key": "old"}}, metav1.CreateOptions{})
		must.Do(t, err)
		made.Labels = labelled
		must.Get(core.Secrets(consumer).Update(t.Context(), made, metav1.UpdateOptions{}))(t)
		_, err = core.Secrets(consumer).Patch(t.Context(), made.Name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
		return errors.Join(err, core.Secrets(consumer).Delete(t.Context(), made.Name, metav1.DeleteOptions{}))
	}
	harness.Eventually(t, soon, func() error {
		if configMap("", onlyData, nil) == nil {
			return errors.New("the policy is not in force")
		}
		return nil
	})
	for name, test := range stagedChanges() {
		t.Run(name, func(t *testing.T) {
			wantRefusal(t, configMap(test.before, test.patch, nil), test.says...)
		})
	}
	t.Run("binary data", func(t *testing.T) {
		wantRefusal(t, configMap("", `{"binaryData":{"binary":"bmV3"}}`, nil), stagedPolicy)
		wantRefusal(t, configMap("", `{"binaryData":null}`, nil), stagedPolicy)
	})
	t.Run("a Secret", func(t *testing.T) {
		wantRefusal(t, secret("", onlyData), stagedPolicy)
		wantRefusal(t, secret("", withShare("1%")))
		wantRefusal(t, secret("", `{"stringData":{"key":"new"}}`), stagedPolicy)
		wantRefusal(t, secret("", `{"stringData":{"key":"old"}}`))
	})
	t.Run("new objects", func(t *testing.T) {
		create := func(share string, immutable bool) error {
			object := &corev1.ConfigMap{ObjectMeta: meta("new-", share), Immutable: &immutable, Data: map[string]string{"key": "new"}}
			object.Labels = labelled
			made, err := core.ConfigMaps(consumer).Create(t.Context(), object, metav1.CreateOptions{})
			if err != nil {
				return err
			}
			return core.ConfigMaps(consumer).Delete(t.Context(), made.Name, metav1.DeleteOptions{})
		}
		wantRefusal(t, create("0%", false))
		wantRefusal(t, create("", false), stagedPolicy, "it has none")
		wantRefusal(t, create("50%", false), stagedPolicy, "it has 50%")
		wantRefusal(t, create("0%", true), stagedPolicy, "an immutable object reaches all pods, whatever its annotation refvol.dev/rollout says")
	})
	t.Run("an object becomes immutable", func(t *testing.T) {
		wantRefusal(t, configMap("0%", `{"immutable":true}`, nil), stagedPolicy, "an immutable object reaches all pods")
		wantRefusal(t, configMap("", `{"immutable":true}`, nil))
		immutable := func(c *corev1.ConfigMap) { c.Immutable = new(true) }
		wantRefusal(t, configMap("", `{"metadata":{"annotations":{"refvol.dev/rollout":"0%"}}}`, immutable), stagedPolicy, "an immutable object reaches all pods")
		wantRefusal(t, configMap("", `{"metadata":{"labels":{"a":"b"}}}`, immutable))
		wantRefusal(t, configMap("0%", `{"immutable":true,"metadata":{"annotations":null}}`, nil))
	})
	t.Run("other objects", func(t *testing.T) {
		for _, labels := range []map[string]string{nil, {"refvol.dev/staged": "false"}, {"a": "b"}} {
			wantRefusal(t, configMap("", onlyData, func(c *corev1.ConfigMap) { c.Labels = labels }))
		}
	})
	t.Run("the label comes with the change", func(t *testing.T) {
		unlabelled := func(c *corev1.ConfigMap) { c.Labels = nil }
		wantRefusal(t, configMap("", `{"metadata":{"labels":{"refvol.dev/staged":"true"}},"data":{"key":"new"}}`, unlabelled), stagedPolicy)
	})
	t.Run("the policy has no warnings", func(t *testing.T) {
		policy := must.Get(shared.Client().AdmissionregistrationV1().ValidatingAdmissionPolicies().Get(t.Context(), "refvol-staged", metav1.GetOptions{}))(t)
		if checked := policy.Status.TypeChecking; checked != nil && len(checked.ExpressionWarnings) > 0 {
			t.Errorf("%+v", checked.ExpressionWarnings)
		}
	})
}
