package manifests

import (
	"fmt"
	"slices"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/refvol/refvol/e2e/tools/harness"
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
	for _, bad := range append(v.refused(), refusal{attributes: attributes{"secret": "s", "csi.storage.k8s.io/x": "y"}}) {
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

// TestAdmissionNeedsEachRule takes away one rule after the other: each time something
// gets through that did not before, so no rule is idle and no test blind.
func TestAdmissionNeedsEachRule(t *testing.T) {
	enforce(t, variants()[0])
	whole := policy(t)
	bad := refused()
	for _, test := range beyond() {
		bad = append(bad, test)
	}
	for i, rule := range whole.Spec.Validations {
		validations := slices.DeleteFunc(slices.Clone(whole.Spec.Validations), func(v admissionv1.Validation) bool {
			return v.Expression == rule.Expression
		})
		replacePolicy(t, fmt.Sprintf("without-%d", i), func(p *admissionv1.ValidatingAdmissionPolicy) { p.Spec.Validations = validations })
		harness.Eventually(t, soon, func() error { // on a busy machine a request may fail otherwise
			var others error
			for _, r := range bad {
				err := try(t.Context(), podWith("app", r.volume()))
				if err == nil {
					return nil
				}
				if !apierrors.IsInvalid(err) {
					others = err
				}
			}
			return fmt.Errorf("without the rule %q everything is refused still (%v)", rule.Expression, others)
		})
	}
	// Without the condition a pod that has no volumes can't be judged, and fails.
	replacePolicy(t, "without-condition", func(p *admissionv1.ValidatingAdmissionPolicy) {
		p.Spec.MatchConditions, p.Spec.Validations = nil, whole.Spec.Validations
	})
	if err := try(t.Context(), accepted(false)["no volume at all"]); err == nil {
		t.Error("the condition is of no use")
	}
}

func policy(t *testing.T) *admissionv1.ValidatingAdmissionPolicy {
	t.Helper()
	p, err := shared.Client().AdmissionregistrationV1().ValidatingAdmissionPolicies().Get(t.Context(), policyName, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// replacePolicy changes the policy, adds a rule against pods with a name, and waits until
// that one is in force.
func replacePolicy(t *testing.T, name string, change func(*admissionv1.ValidatingAdmissionPolicy)) {
	t.Helper()
	p := policy(t)
	change(p)
	p.Spec.Validations = append(p.Spec.Validations, admissionv1.Validation{
		Expression: fmt.Sprintf("object.metadata.name != %q", name), Message: "as a sign",
	})
	policies := shared.Client().AdmissionregistrationV1().ValidatingAdmissionPolicies()
	if _, err := policies.Update(t.Context(), p, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	awaitRefusal(t, podWith(name, inline(attributes{"configMap": "app"})), "as a sign")
}
