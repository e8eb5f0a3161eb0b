package integration

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/refvol/refvol/e2e/tools/harness"
)

// The namespaces that a grant is tried in: that of the accounts which it is for, with objects of their own, that which they want
// objects from, and that of accounts of the same names that nobody meant. Each grant has its own of the first two.
const consumers, sources, elsewhere = "consumers", "sources", "elsewhere"

// grant is one way to give rights, by an administrator of consumers and of sources.
type grant struct {
	name  string
	verbs []string
	// byName restricts it to the objects that exist and those that don't, and leaves out a
	// third one.
	byName bool
	// in is where it is made: in both namespaces of the objects, or in one that is wrong.
	in []string
	// clusterRole makes the role one of the cluster.
	clusterRole bool
	// to is the subject, and may says who that is.
	to  func(consumersAre string) rbacv1.Subject
	may func(namespace, account string) bool
	// revoked takes it back before anybody asks.
	revoked bool
}

var (
	readVerbs = []string{"get", "list", "watch"}
	both      = []string{consumers, sources}
)

// grants returns all that the matrix is made of.
func grants() []grant {
	toWeb := func(ns string) rbacv1.Subject { return account(ns, "web") }
	isWeb := func(namespace, account string) bool { return namespace == consumers && account == "web" }
	return []grant{
		{name: "none"},
		{name: "by name", verbs: readVerbs, byName: true, in: both, to: toWeb, may: isWeb},
		{name: "for all", verbs: readVerbs, in: both, to: toWeb, may: isWeb},
		{name: "cluster role", verbs: readVerbs, in: both, clusterRole: true, to: toWeb, may: isWeb},
		{
			name: "group of the namespace", verbs: readVerbs, in: both,
			to:  func(ns string) rbacv1.Subject { return group("system:serviceaccounts:" + ns) },
			may: func(namespace, _ string) bool { return namespace == consumers },
		},
		{
			name: "group of all accounts", verbs: readVerbs, byName: true, in: both,
			to:  func(string) rbacv1.Subject { return group("system:serviceaccounts") },
			may: func(string, string) bool { return true },
		},
		{
			name: "authenticated", verbs: readVerbs, in: both,
			to:  func(string) rbacv1.Subject { return group("system:authenticated") },
			may: func(string, string) bool { return true },
		},
		{name: "wrong namespace", verbs: readVerbs, in: []string{elsewhere}, to: toWeb, may: isWeb},
		{name: "get alone", verbs: []string{"get"}, in: both, to: toWeb, may: isWeb},
		{name: "wrong verbs", verbs: []string{"list", "watch", "update", "delete", "create"}, in: both, to: toWeb, may: isWeb},
		{name: "revoked", verbs: readVerbs, in: both, to: toWeb, may: isWeb, revoked: true},
	}
}

// allows is what the API server is to say of the grant alone.
func (g *grant) allows(namespace, account, verb, in string) bool {
	return !g.revoked && slices.Contains(g.verbs, verb) && slices.Contains(g.in, in) && g.may(namespace, account)
}

// tuple is one case of the matrix: an account wants an object.
type tuple struct {
	grant              *grant
	namespace, account string
	kind, in           string
	exists, optional   bool
}

func (c *tuple) String() string {
	return fmt.Sprintf("%s: %s/%s wants a %s of %s (exists %t, optional %t)", c.grant.name, c.namespace, c.account, c.kind, c.in, c.exists, c.optional)
}

// object returns the name of the object.
func (c *tuple) object() string {
	if c.exists {
		return "there"
	}
	return "absent"
}

// tuples returns the whole matrix of one identity mode.
func tuples(gs []grant) []tuple {
	var all []tuple
	for i := range gs {
		for _, who := range [][2]string{{consumers, "web"}, {consumers, "other"}, {elsewhere, "web"}} {
			for _, kind := range []string{"secret", "configmap"} {
				for _, in := range both {
					for bits := range 4 {
						all = append(all, tuple{&gs[i], who[0], who[1], kind, in, bits&1 == 0, bits&2 == 0})
					}
				}
			}
		}
	}
	return all
}

// mode is a plugin of the matrix, with what a pod needs there.
type mode struct {
	*node
	name string
	// own says that objects of the pod's namespace take no right; needs are the verbs that
	// all others take.
	own   bool
	needs []string
	// asNode says that the plugin reads as its node. Then no grant counts, but whether the pod's
	// spec names the object.
	asNode bool
	// refusals has what was said of each case that is refused, but for whether the object exists.
	refusals sync.Map
}

// names says whether the pods of a case's account name the objects in their own specs, where the
// plugin reads as its node. All others are their neighbours.
func (c *tuple) names() bool { return c.account == "web" && c.namespace == c.in }

// want is the oracle: what a publish is to answer.
func (m *mode) want(c *tuple) codes.Code {
	if m.asNode && !c.names() {
		return codes.InvalidArgument
	}
	if !m.asNode && (!m.own || c.namespace != c.in) {
		for _, verb := range m.needs {
			if !c.grant.allows(c.namespace, c.account, verb, c.in) {
				return codes.PermissionDenied
			}
		}
	}
	if c.exists || c.optional {
		return codes.OK
	}
	return codes.NotFound
}

// site is where the matrix is tried: the real names of each grant's namespaces.
type site struct {
	t *testing.T
	// names has the name of a namespace by the grant and what it is to that.
	names map[*grant]map[string]string
	// matrix has all cases: whoever has one has a pod, even if the case is not tried.
	matrix []tuple
}

func newSite(t *testing.T, gs []grant) *site {
	t.Helper()
	s := &site{t: t, names: map[*grant]map[string]string{}, matrix: tuples(gs)}
	other := newNamespace(t)
	for i := range gs {
		g := &gs[i]
		s.names[g] = map[string]string{consumers: newNamespace(t), sources: newNamespace(t), elsewhere: other}
		for _, in := range both {
			n := node{t: t, namespace: s.names[g][in]}
			n.configMap("there", map[string]string{"key": "value in " + n.namespace})
			n.secret("there", map[string]string{"key": "value in " + n.namespace})
		}
		s.make(g)
	}
	return s
}

// make makes the roles and bindings of a grant.
func (s *site) make(g *grant) {
	s.t.Helper()
	var rules []rbacv1.PolicyRule
	for _, kind := range []string{"secret", "configmap"} {
		r := rule(kind, "")
		r.Verbs = g.verbs
		if g.byName {
			r.ResourceNames = []string{"there", "absent"}
		}
		rules = append(rules, r)
	}
	for _, in := range g.in {
		subject := g.to(s.names[g][consumers])
		var revoke func()
		if g.clusterRole {
			role, err := shared.Client().RbacV1().ClusterRoles().Create(s.t.Context(), &rbacv1.ClusterRole{
				ObjectMeta: metav1.ObjectMeta{GenerateName: "grant-"}, Rules: rules,
			}, metav1.CreateOptions{})
			if err != nil {
				s.t.Fatal(err)
			}
			revoke = bind(s.t, s.names[g][in], "ClusterRole", role.Name, subject)
		} else {
			revoke = allowRules(s.t, s.names[g][in], rules, subject)
		}
		if g.revoked {
			revoke()
		}
	}
}

// settle waits until the API server says of every case what the grants say, and so holds
// the oracle against it.
func (s *site) settle(all []tuple) {
	s.t.Helper()
	for i := range all {
		c := &all[i]
		if c.optional {
			continue // the same rights as the case that is not
		}
		for _, verb := range readVerbs {
			namespace, want := s.names[c.grant][c.namespace], c.grant.allows(c.namespace, c.account, verb, c.in)
			review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
				User:   "system:serviceaccount:" + namespace + ":" + c.account,
				Groups: []string{"system:serviceaccounts", "system:serviceaccounts:" + namespace, "system:authenticated"},
				ResourceAttributes: &authorizationv1.ResourceAttributes{
					Namespace: s.names[c.grant][c.in], Verb: verb, Resource: c.kind + "s", Name: c.object(),
				},
			}}
			harness.Eventually(s.t, soon, func() error { // it hears of the roles by a watch
				answer, err := shared.Client().AuthorizationV1().SubjectAccessReviews().Create(s.t.Context(), review, metav1.CreateOptions{})
				if err == nil && answer.Status.Allowed != want {
					err = fmt.Errorf("%s: the API server allows %s: %t, want %t", c, verb, answer.Status.Allowed, want)
				}
				return err
			})
		}
	}
}

// volume returns the volume of a case, of a pod that the case's account has.
func (s *site) volume(c *tuple, pods map[string]*harness.Volume, i int) *harness.Volume {
	pod := *pods[s.names[c.grant][c.namespace]+"/"+c.account]
	pod.Name = fmt.Sprintf("case-%d", i)
	pod.Attributes = map[string]string{
		map[string]string{"secret": "secret", "configmap": "configMap"}[c.kind]: c.object(),
		"namespace": s.names[c.grant][c.in],
		"optional":  fmt.Sprint(c.optional),
	}
	return &pod
}

// sample returns the cases in which a grant is for the account and the object is in the other namespace, and as many others. Four
// cases are one question: with and without the object, which may be optional. They stay together, as their answers are compared.
func sample(all []tuple, random *rand.Rand) (some []tuple) {
	var others [][]tuple
	for group := range slices.Chunk(all, 4) {
		if c := &group[0]; c.namespace == consumers && c.account == "web" && c.in == sources {
			some = append(some, group...)
		} else {
			others = append(others, group)
		}
	}
	random.Shuffle(len(others), func(i, j int) { others[i], others[j] = others[j], others[i] })
	return append(some, slices.Concat(others[:len(some)/4]...)...)
}

// TestConsent publishes, in each identity mode, a volume for every combination of who wants
// what with which grant, and holds the answer against the oracle. The short form tries those that the grants are for, and as many
// others.
func TestConsent(t *testing.T) {
	t.Parallel()
	gs := grants()
	s := newSite(t, gs)
	all := s.matrix
	if harness.Scaled(true, false) {
		all = sample(all, harness.Rand(t))
	}
	s.settle(all)
	for _, m := range []*mode{
		{name: "plugin", own: true, needs: []string{"get"}},
		{name: "pod", needs: readVerbs},
		{name: "pod by gets", needs: []string{"get"}},
		{name: "node", asNode: true},
	} {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			const wait = "--publish-wait=2s"
			switch m.name {
			case "plugin":
				m.node = newAcrossNode(t, wait)
			case "pod":
				m.node = newPodNode(t, wait)
			case "node":
				m.node = newAsNode(t, wait, "--resync-interval=1s")
			default:
				m.node = newPodNode(t, wait, "--change-detection=Get")
			}
			m.tryAll(s, all)
			if m.asNode {
				m.agreesWithTheAuthorizer(s, all)
			}
			m.wantNothingLeft()
		})
	}
}

// tryAll tries the cases, those of one pod in their order, some pods at once.
func (m *mode) tryAll(s *site, all []tuple) {
	m.t.Helper()
	pods := s.pods(m)
	byPod := map[string][]func() codes.Code{}
	for i := range all {
		c, v := &all[i], s.volume(&all[i], pods, i)
		byPod[v.UID] = append(byPod[v.UID], func() codes.Code { return m.try(m.t.Context(), c, v, s.names[c.grant][c.in]) })
	}
	var mu sync.Mutex
	counts := map[codes.Code]int{}
	var trying sync.WaitGroup
	places := make(chan struct{}, 8)
	for _, cases := range byPod {
		places <- struct{}{}
		trying.Go(func() {
			defer func() { <-places }()
			for _, try := range cases {
				code := try()
				mu.Lock()
				counts[code]++
				mu.Unlock()
			}
		})
	}
	trying.Wait()
	m.t.Logf("%s: %d cases of %d pods: %v", m.name, len(all), len(byPod), counts)
}

// pods makes a pod for each account of the matrix.
func (s *site) pods(m *mode) map[string]*harness.Volume {
	s.t.Helper()
	pods := map[string]*harness.Volume{}
	for _, c := range s.matrix {
		namespace := s.names[c.grant][c.namespace]
		if key := namespace + "/" + c.account; pods[key] == nil {
			v := harness.NewVolume(namespace, "", nil)
			v.ServiceAccount = c.account
			if m.asNode {
				pods[key] = m.podOf(v)
				continue
			}
			pods[key] = m.pod(v)
		}
	}
	return pods
}

// podOf makes the pod of an account where the plugin reads as its node: one of "web" names the
// objects in its spec.
func (m *mode) podOf(v *harness.Volume) *harness.Volume {
	m.t.Helper()
	m.account(v.Namespace, v.ServiceAccount)
	spec := corev1.PodSpec{ServiceAccountName: v.ServiceAccount}
	if v.ServiceAccount == "web" {
		for _, name := range []string{"there", "absent"} {
			named := nativeBoth(name, name).Volumes[0]
			named.Name = name
			spec.Volumes = append(spec.Volumes, named)
		}
	}
	pod := schedule(m.t, shared.ControlPlane, v.Namespace, spec)
	v.Pod, v.UID = pod.Name, string(pod.UID)
	return v
}

// agreesWithTheAuthorizer asks the API server of each case whether the node may read the object.
// A volume that shows it without that would be a disagreement, and so would a right that this
// test doesn't know of. What the node may read for a neighbour is no right of the pod.
func (m *mode) agreesWithTheAuthorizer(s *site, all []tuple) {
	m.t.Helper()
	for i := range all {
		c := &all[i]
		mayRead := c.in == consumers // a pod of "web" is there; none is in sources
		review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
			User: nodeUser(harness.NodeName), Groups: []string{"system:nodes", "system:authenticated"},
			ResourceAttributes: &authorizationv1.ResourceAttributes{
				Namespace: s.names[c.grant][c.in], Verb: "watch", Resource: c.kind + "s", Name: c.object(),
			},
		}}
		answer, err := shared.Client().AuthorizationV1().SubjectAccessReviews().Create(m.t.Context(), review, metav1.CreateOptions{})
		if err != nil {
			m.t.Fatal(err)
		}
		granted := c.grant.name == "authenticated" // which nodes are too
		if answer.Status.Allowed != (mayRead || granted) || m.want(c) != codes.InvalidArgument && !answer.Status.Allowed {
			m.t.Errorf("%s: the API server allows it to the node: %t", c, answer.Status.Allowed)
		}
	}
}

// try publishes the volume of a case, compares what comes of it, and removes it.
func (m *mode) try(ctx context.Context, c *tuple, v *harness.Volume, in string) codes.Code {
	err := m.finalAnswer(v)
	code := status.Code(err)
	if want := m.want(c); code != want {
		m.t.Errorf("%s, %s: got %v, want %s", m.name, c, err, want)
	}
	if code == codes.PermissionDenied && !strings.Contains(err.Error(), fmt.Sprintf("service account %q of the pod may not ", c.account)) {
		m.t.Errorf("%s, %s: got %v", m.name, c, err)
	}
	if code == codes.PermissionDenied || code == codes.InvalidArgument {
		same, text := *c, strings.ReplaceAll(err.Error(), "/"+c.object()+`"`, `/NAME"`)
		same.exists = true
		if other, ok := m.refusals.LoadOrStore(same, text); ok && other != text {
			m.t.Errorf("%s, %s: %q tells whether the object exists, elsewhere it was %q", m.name, c, text, other)
		}
	}
	if err != nil {
		return code
	}
	if got, err := m.content(v, "key"); c.exists != (err == nil) || c.exists && got != "value in "+in {
		m.t.Errorf("%s, %s: it shows %q, %v", m.name, c, got, err)
	}
	if err := m.Unpublish(ctx, v); err != nil {
		m.t.Errorf("%s, %s: unpublish: %v", m.name, c, err)
	}
	return code
}
