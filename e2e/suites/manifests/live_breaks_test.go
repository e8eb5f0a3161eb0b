package manifests

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/refvol/refvol/e2e/tools/harness"
)

// broken is a policy of which a part is replaced, and the cases that go wrong by it.
type broken struct {
	policy, from, to string
	cases            []string
}

// breaks are changes of both policies.
func breaks() []broken {
	return []broken{
		{livePolicy, "object.metadata.?annotations[?'refvol.dev/live'].orValue('') != 'false'", "true", []string{"the annotation false"}},
		{livePolicy, "object.metadata.?labels[?'refvol.dev/live'].orValue('') != 'false'", "true", []string{"the label false"}},
		{livePolicy, "!object.metadata.?annotations[?'kubernetes.io/config.mirror'].hasValue()", "true", []string{"a mirror pod"}},
		{livePolicy, "object.spec.?os.?name.orValue('') != 'windows'", "true", []string{"Windows by its field"}},
		{livePolicy, "object.spec.?nodeSelector[?'kubernetes.io/os'].orValue('') != 'windows'", "true", []string{"Windows by the node selector"}},
		{livePolicy, "has(v.secret)", "false", []string{"a Secret", "three of four"}},
		{livePolicy, "has(v.configMap)", "false", []string{
			"a ConfigMap", "all kinds of containers", "an init container alone", "two paths", "fields of a mount", "equal variables and ports",
			"Linux by both", "another driver beside", "56 characters", "the label true, in another namespace", "50 containers with 100 volumes",
		}},
		{livePolicy, "has(v.secret)", "(has(v.secret) || has(v.csi))", []string{"another driver"}},
		{livePolicy, "has(v.secret)", "(has(v.secret) || has(v.downwardAPI))", []string{"a volume of the downward API"}},
		{livePolicy, "+ [n])[0]", "+ ['x'])[0]", []string{"both names taken"}},
		{livePolicy, "has(v.projected)", "false", []string{"a projected volume"}},
		{livePolicy, "m.?subPath.orValue('') == '' && ", "", []string{"subPath"}},
		{livePolicy, " && m.?subPathExpr.orValue('') == ''", "", []string{"subPathExpr"}},
		{livePolicy, ".all(s, has(s.configMap) || has(s.secret))", ".size() > 0", []string{"another source, a token", "another source, the downward API"}},
		{livePolicy, "(v.name in variables.whole ||", "(true ||", []string{"not mounted", "the author's own live volume alone"}},
		{livePolicy, "object.spec.?initContainers.orValue([]).map(c, c.?", "dyn([]).map(c, c.?", []string{"an init container alone", "subPath, and as a whole in another container"}},
		{livePolicy, "name.size() <= 63 && ", "", []string{"57 characters", "63 characters that begin alike"}},
		{livePolicy, " && !(name in variables.names)", "", []string{"a name that is taken", "a name that another native volume has"}},
		{livePolicy, "v.csi.driver == 'csi.refvol.dev'", "true", []string{"another driver's with the name of ours"}},
		{livePolicy, "v.name.startsWith('refvol-') && ", "", []string{"the author's own live volume"}},
		{livePolicy, "v.csi.?readOnly.orValue(false)", "true", []string{"the author's own with the name of ours, writable"}},
		{livePolicy, ".size() == 1 && 'volume' in", ".size() > 0 && 'volume' in", []string{"the author's own with the name of ours, and more"}},
		{
			livePolicy, "variables.containers[c.name].exists(path, variables.containers[c.name][path] in variables.live)",
			"c.?volumeMounts.orValue([]).exists(m, m.name in variables.live)",
			[]string{"a path with two volumes", "a path with two volumes, the live one last", "two containers of one name"},
		},
		{
			livePolicy, "variables.initContainers[c.name].exists(path, variables.initContainers[c.name][path] in variables.live)",
			"c.?volumeMounts.orValue([]).exists(m, m.name in variables.live)",
			[]string{"a path with two volumes in an init container", "two init containers of one name"},
		},
		{livePolicy, "name: variables.live[m.name], readOnly: true", "name: variables.live[m.name]", []string{"a generated name", "two paths"}},
		{livePolicy, "object.spec.volumes.map(v, v.name)", "['refvol-a'] + object.spec.volumes.map(v, v.name)", []string{"the label true too"}},
		{liveUpdatePolicy, "c.name in variables.containers && ", "", []string{"a path with two volumes"}},
		{liveUpdatePolicy, "c.name in variables.initContainers && ", "", []string{"a path twice in an init container"}},
		{liveUpdatePolicy, "m.name == variables.shown", "'' != variables.shown", []string{"another volume"}},
		{liveUpdatePolicy, "m.name in variables.shown, ", "false, ", []string{"nothing", "an image"}},
	}
}

// TestLivePoliciesNeedEachPart breaks one part of a policy after the other: each time a case goes wrong.
func TestLivePoliciesNeedEachPart(t *testing.T) {
	s := newLiveSuite(t)
	all := liveCases(s)
	pods := before(t, s, all)
	s.enforce(t)
	policies := shared.Client().AdmissionregistrationV1().MutatingAdmissionPolicies()
	var manifest corev1.Pod
	if err := yaml.UnmarshalStrict([]byte(liveManifest), &manifest); err != nil {
		t.Fatal(err)
	}
	live, err := shared.Client().CoreV1().Pods(s.live).Create(t.Context(), &manifest, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.remove(t) })
	goesWrong := func(policy, name string) error {
		if policy == liveUpdatePolicy {
			i := slices.IndexFunc(updatesOfLivePods(), func(u liveUpdate) bool { return u.name == name })
			update := updatesOfLivePods()[i]
			err := update.try(t, live)
			if (err == nil) != (update.says == nil) {
				return nil
			}
			return fmt.Errorf("of the update %q it still says %w", name, orNone(err))
		}
		i := slices.IndexFunc(all, func(c liveCase) bool { return c.name == name })
		if all[i].wrong(t.Context(), s, pods[name]) == nil {
			return fmt.Errorf("the case %q is still right", name)
		}
		return nil
	}
	for _, test := range breaks() {
		t.Run(test.policy+" "+test.from+" "+test.to, func(t *testing.T) {
			whole, err := policies.Get(t.Context(), test.policy, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			put := func(spec admissionv1.MutatingAdmissionPolicySpec) {
				now, err := policies.Get(t.Context(), test.policy, metav1.GetOptions{})
				if err != nil {
					t.Fatal(err)
				}
				now.Spec = spec
				if _, err := policies.Update(t.Context(), now, metav1.UpdateOptions{}); err != nil {
					t.Fatal(err)
				}
			}
			spec, found := whole.DeepCopy().Spec, false
			for _, text := range expressions(&spec) {
				found = found || strings.Contains(*text, test.from)
				*text = strings.ReplaceAll(*text, test.from, test.to)
			}
			if !found {
				t.Fatal("the policy has no such part")
			}
			put(spec)
			defer put(whole.Spec)
			for _, name := range test.cases {
				harness.Eventually(t, soon, func() error { return goesWrong(test.policy, name) })
			}
		})
	}
}

// expressions are all of a policy.
func expressions(spec *admissionv1.MutatingAdmissionPolicySpec) []*string {
	var all []*string
	for i := range spec.MatchConditions {
		all = append(all, &spec.MatchConditions[i].Expression)
	}
	for i := range spec.Variables {
		all = append(all, &spec.Variables[i].Expression)
	}
	for i := range spec.Mutations {
		all = append(all, &spec.Mutations[i].ApplyConfiguration.Expression)
	}
	return all
}
