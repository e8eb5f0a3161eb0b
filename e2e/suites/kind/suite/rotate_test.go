package suite

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/refvol/refvol/internal/leak"
	"github.com/refvol/refvol/pkg/fleet"
)

const (
	// rotators is how many pods log in, on all nodes.
	rotators = 30
	// databasePort is where the database listens.
	databasePort = 8080
)

// logins counts what the database answered to one pod, as the probe tells of it.
type logins struct {
	Accepted int `json:"accepted"`
	Refused  int `json:"refused"`
}

func (l logins) total() int { return l.Accepted + l.Refused }

// rotation is the recipe that rotates a password, with a database and pods that log in to it.
type rotation struct {
	*namespace
	kitchen *kitchen
	// patch and converged are the commands of the document.
	patch, converged step
}

// newRotation starts the database, which accepts no password yet.
func newRotation(t *testing.T) *rotation {
	t.Helper()
	text, err := os.ReadFile("../../../../docs/recipes.md")
	if err != nil {
		t.Fatal(err)
	}
	recipes := parseRecipes(t, string(text))
	i := slices.IndexFunc(recipes, func(r recipe) bool { return r.title == "Rotate a password" })
	if i < 0 || len(recipes[i].steps) != 2 {
		t.Fatal("docs/recipes.md has no recipe of two commands that rotates a password")
	}
	k := newKitchen(t)
	k.in(t, "shop")
	r := &rotation{namespace: k.namespaces["shop"], kitchen: k, patch: recipes[i].steps[0], converged: recipes[i].steps[1]}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the clients tell: %s", r.failures(context.WithoutCancel(t.Context())))
		}
	})
	database := newPod("database")
	database.Labels = map[string]string{"app": "database"}
	database.Spec.Containers[0].Args = []string{"database", fmt.Sprintf(":%d", databasePort)}
	r.start(database)
	return r
}

// startClients has pods on all nodes log in by a Service with what their volumes of the Secret db
// show, and returns when each has done so.
func (r *rotation) startClients() {
	r.t.Helper()
	service, err := r.client.CoreV1().Services(r.name).Create(r.t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "database"},
		Spec:       corev1.ServiceSpec{Selector: map[string]string{"app": "database"}, Ports: []corev1.ServicePort{{Port: databasePort}}},
	}, metav1.CreateOptions{})
	if err != nil {
		r.t.Fatal(err)
	}
	labels := map[string]string{"app": "client"}
	client := newPod("client", refvol("login", attributes{"secret": "db"})).Spec
	client.Containers[0].Args = []string{"client", fmt.Sprintf("http://%s:%d", service.Spec.ClusterIP, databasePort), mountDir + "login/password"}
	client.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
	client.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
		MaxSkew:           1,
		TopologyKey:       corev1.LabelHostname,
		WhenUnsatisfiable: corev1.DoNotSchedule,
		LabelSelector:     &metav1.LabelSelector{MatchLabels: labels},
	}}
	_, err = r.client.AppsV1().Deployments(r.name).Create(r.t.Context(), &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "client"},
		Spec: appsv1.DeploymentSpec{
			Replicas: new(int32(rotators)),
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: client},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		r.t.Fatal(err)
	}
	r.awaitLogins()
	pods, err := r.client.CoreV1().Pods(r.name).List(r.t.Context(), metav1.ListOptions{LabelSelector: "app=client"})
	if err != nil {
		r.t.Fatal(err)
	}
	nodes := map[string]int{}
	for i := range pods.Items {
		nodes[pods.Items[i].Spec.NodeName]++
	}
	if all, _ := r.nodes(r.t); len(nodes) != len(all) {
		r.t.Fatalf("the clients are on %v, not on all of %q", nodes, all)
	}
}

// accept has the database accept these passwords, and no other.
func (r *rotation) accept(passwords ...string) {
	r.t.Helper()
	err := r.client.CoreV1().RESTClient().Put().Namespace(r.name).Resource("pods").SubResource("proxy").
		Name(fmt.Sprintf("database:%d", databasePort)).Suffix("passwords").
		Body([]byte(strings.Join(passwords, "\n"))).Do(r.t.Context()).Error()
	if err != nil {
		r.t.Fatal(err)
	}
}

// logins returns the logins of each pod.
func (r *rotation) logins(ctx context.Context) (map[string]logins, error) {
	body, err := r.client.CoreV1().Pods(r.name).ProxyGet("http", "database", fmt.Sprint(databasePort), "/logins", nil).DoRaw(ctx)
	if err != nil {
		return nil, err
	}
	users := map[string]logins{}
	return users, json.Unmarshal(body, &users)
}

// awaitLogins waits until each pod has logged in once more, and returns the sum of all logins. A
// pod logs in one time after the other, so the next one reads the file later than this was called.
func (r *rotation) awaitLogins() logins {
	r.t.Helper()
	before, err := r.logins(r.t.Context())
	if err != nil {
		r.t.Fatal(err)
	}
	var sum logins
	eventually(r.t, 2*podTimeout, "each client has logged in", func(ctx context.Context) error {
		now, err := r.logins(ctx)
		if err != nil {
			return err
		}
		sum = logins{}
		for pod, l := range now {
			if l.total() == before[pod].total() {
				return fmt.Errorf("%s did not, after %d times", pod, l.total())
			}
			sum = logins{sum.Accepted + l.Accepted, sum.Refused + l.Refused}
		}
		if len(now) != rotators {
			return fmt.Errorf("%d clients did", len(now))
		}
		return nil
	})
	return sum
}

// failures returns what the clients tell of logins that failed.
func (r *rotation) failures(ctx context.Context) string {
	r.t.Helper()
	lines, err := r.kitchen.logs(ctx, r.name, "", "app=client", &corev1.PodLogOptions{})
	text := strings.TrimSpace(strings.Join(lines, "\n"))
	if err != nil {
		r.t.Fatal(err)
	}
	if err := leak.Check("the clients' logs", text); err != nil {
		r.t.Error(err)
	}
	return text
}

// update does the document's first command.
func (r *rotation) update(password string) {
	r.t.Helper()
	args := slices.Clone(r.patch.args)
	for i := range args {
		args[i] = strings.ReplaceAll(args[i], "second", password)
	}
	r.kitchen.run(r.t, step{args: args})
}

// isConverged does the document's second command, and returns the answer.
func (r *rotation) isConverged(more ...string) fleet.Result {
	r.t.Helper()
	var args []string
	for _, arg := range r.converged.args[1:] { // without "refvol"
		if arg == "shop" {
			arg = r.name
		}
		args = append(args, arg)
	}
	answer := kubectlRefvol(r.t, append(append(args, "-o", "json"), more...)...)
	var v fleet.Result
	if err := json.Unmarshal([]byte(answer.stdout), &v); err != nil || (answer.status == 0) != v.Converged {
		r.t.Fatalf("status %d, %v\n%s\n%s", answer.status, err, answer.stdout, answer.stderr)
	}
	return v
}

// revoke waits until all volumes show the Secret and all logins that were under way have ended, and
// then has the database accept the new password only.
func (r *rotation) revoke(password string) {
	r.t.Helper()
	all, _ := r.nodes(r.t)
	if v := r.isConverged(); !v.Converged || v.Volumes != rotators || v.Nodes != len(all) {
		r.t.Fatalf("%+v; want yes of %d volumes on nodes %q", v, rotators, all)
	}
	r.awaitLogins()
	r.accept(password)
	if sum := r.awaitLogins(); sum.Refused != 0 {
		r.t.Fatalf("%d logins of %d were refused", sum.Refused, sum.total())
	}
}

// TestRotatePassword does the recipe again and again, once while a node's plugin is away: no login
// fails. Without its order logins do fail. It runs with no other test: the command looks at all
// nodes.
func TestRotatePassword(t *testing.T) {
	away := takeNode(t)
	r := newRotation(t)
	password := canary("zero")
	r.accept(password)
	r.createSecret("db", object{"password": password})
	r.startClients()

	for _, next := range []string{"one", "two", "three"} {
		r.accept(password, canary(next))
		password = canary(next)
		r.update(password)
		r.revoke(password)
	}

	letBack := r.keepPluginAway(t, away)
	r.accept(password, canary("four"))
	password = canary("four")
	r.update(password)
	if v := r.isConverged("--timeout=5s"); v.Converged {
		t.Errorf("%+v, though %s has no plugin", v, away)
	}
	letBack()
	r.revoke(password)

	sum := r.awaitLogins()
	t.Logf("%d logins, %d refused", sum.total(), sum.Refused)
	if sum.Accepted < 20*rotators || sum.Refused != 0 {
		t.Errorf("%+v; want %d logins at least, none refused", sum, 20*rotators)
	}
	if failed := r.failures(r.t.Context()); failed != "" {
		t.Errorf("logins failed:\n%s", failed)
	}

	// The other order: the old password is revoked before the Secret is updated.
	password = canary("five")
	r.accept(password)
	if refused := r.awaitLogins().Refused; refused < rotators || !strings.Contains(r.failures(r.t.Context()), "Unauthorized") {
		t.Errorf("%d logins were refused, though no volume has the password", refused)
	}
}
