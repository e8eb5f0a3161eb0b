package integration

import (
	"testing"

	"google.golang.org/grpc/codes"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/refvol/refvol/e2e/tools/harness"
)

const envSources = `
- env:
    path: app.env
    mode: 0400
    envFrom: [{prefix: APP_, configMapRef: {name: app}}, {secretRef: {name: none, optional: true}}]
    env:
    - {name: DB_PASSWORD, valueFrom: {secretKeyRef: {name: db, key: password}}}
    - {name: DB_URL, value: "db://$(POD)@$(APP_host)/$$(x)"}
    - {name: POD, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
    - {name: NODE, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}
    - {name: NOT.FOR.FILES, value: x}
- env: {path: sh/app.sh, format: shell, env: [{name: A, value: "it's"}]}
`

// An env file follows the objects that its variables come from.
func TestEnvFile(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	password := n.canary()
	n.configMap("app", map[string]string{"host": "h1", "a.b": "x"})
	n.secret("db", map[string]string{"password": password})
	v := n.volume(map[string]string{"sources": envSources})
	n.mustPublish(v)
	env := func(host, password string) string {
		return "APP_host=" + host + "\nDB_PASSWORD=" + password + "\nDB_URL=" + `'db://$(POD)@` + host + `/$(x)'` + "\nNODE=node-1\nPOD=" + v.Pod + "\n"
	}
	n.wantContent(v, "app.env", env("h1", password))
	n.wantContent(v, "sh/app.sh", "A='it'\\''s'\n")
	files, err := harness.Files(n.Target(v))
	if err != nil || files["app.env"].Mode != 0o400 || files["sh/app.sh"].Mode != 0o644 {
		t.Errorf("modes: %v, %v; %v", files["app.env"].Mode, files["sh/app.sh"].Mode, err)
	}
	n.hasEvent(v, "InvalidEnvironmentVariableNames", "app.env: skipped, for a dotenv file can't hold them: APP_a.b, NOT.FOR.FILES")
	n.configMap("app", map[string]string{"host": "h2", "a.b": "x"})
	n.arrives(v, "app.env", env("h2", password), soon)
	password = n.canary()
	n.secret("db", map[string]string{"password": password})
	n.arrives(v, "app.env", env("h2", password), soon)

	n.secret("db", map[string]string{"other": n.canary()})
	n.hasEvent(v, "RefKeyNotFound", "couldn't find key password in Secret "+n.namespace+"/db")
	n.wantContent(v, "app.env", env("h2", password))
	n.mustUnpublish(v)
	n.wantNothingLeft()
}

// pod makes a pod at the API server, and returns a volume of it.
func (n *node) pod(attributes map[string]string, containers ...corev1.Container) *harness.Volume {
	n.t.Helper()
	// No controller is there to make it.
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}
	if _, err := shared.Client().CoreV1().ServiceAccounts(n.namespace).Create(n.t.Context(), account, metav1.CreateOptions{}); err != nil {
		n.t.Fatal(err)
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec:       corev1.PodSpec{InitContainers: containers[1:], Containers: containers[:1]},
	}
	made, err := shared.Client().CoreV1().Pods(n.namespace).Create(n.t.Context(), pod, metav1.CreateOptions{})
	if err != nil {
		n.t.Fatal(err)
	}
	v := harness.NewVolume(n.namespace, made.Name, attributes)
	v.UID = string(made.UID)
	return v
}

// The environment of the pod's own containers becomes a live file. What the pod's spec
// holds of it is for nobody but the volume.
func TestPodEnvFile(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	literal, password, late := n.canary(), n.canary(), n.canary()
	n.secret("db", map[string]string{"password": password})
	v := n.pod(map[string]string{"sources": "- podEnv: {path: main.env, container: main}\n- podEnv: {path: init.sh, container: prepare, format: shell, mode: \"0400\"}\n"},
		corev1.Container{
			Name: "main", Image: "x",
			EnvFrom: []corev1.EnvFromSource{{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "late"}, Optional: new(true)}}},
			Env: []corev1.EnvVar{
				{Name: "LITERAL", Value: literal},
				{Name: "PASSWORD", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{LocalObjectReference: corev1.LocalObjectReference{Name: "db"}, Key: "password"}}},
				{Name: "CPU", ValueFrom: &corev1.EnvVarSource{ResourceFieldRef: &corev1.ResourceFieldSelector{Resource: "limits.cpu"}}},
				{Name: "UID", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.uid"}}},
			},
			Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{"cpu": resource.MustParse("1")}},
		},
		corev1.Container{Name: "prepare", Image: "x", Env: []corev1.EnvVar{{Name: "STEP", Value: "$(UNKNOWN)"}}},
	)
	n.mustPublish(v)
	main := func(late, password string) string {
		return late + "LITERAL=" + literal + "\nPASSWORD=" + password + "\nUID=" + v.UID + "\n"
	}
	n.wantContent(v, "main.env", main("", password))
	n.wantContent(v, "init.sh", "STEP='$(UNKNOWN)'\n")
	n.hasEvent(v, "InvalidEnvironmentVariableNames", "left out, for a volume can't know them: CPU (resourceFieldRef limits.cpu)")
	password = n.canary()
	n.secret("db", map[string]string{"password": password})
	n.arrives(v, "main.env", main("", password), soon)

	// What the pod's spec names is followed after a restart as well.
	n.mustKill()
	password = n.canary()
	n.secret("db", map[string]string{"password": password})
	n.mustStart()
	n.arrives(v, "main.env", main("", password), soon)
	n.secret("late", map[string]string{"A": late})
	n.arrives(v, "main.env", main("A="+late+"\n", password), soon)
	n.mustUnpublish(v)
	n.wantNothingLeft()
}

// A joined file follows each of its objects, and a part that is optional comes and goes.
func TestJoin(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.configMap("corp", map[string]string{"ca.pem": "corp 1"})
	own := n.canary()
	n.secret("own", map[string]string{"ca.crt": own + "\n"})
	v := n.volume(map[string]string{"sources": "- join: {path: tls/ca.pem, mode: 0444, sources: [{configMap: {name: corp, key: ca.pem}}, {secret: {name: own, key: ca.crt}}, {configMap: {name: late, key: k, optional: true}}]}\n"})
	n.mustPublish(v)
	n.wantContent(v, "tls/ca.pem", "corp 1\n"+own+"\n")
	n.configMap("corp", map[string]string{"ca.pem": "corp 2\n"})
	n.arrives(v, "tls/ca.pem", "corp 2\n"+own+"\n", soon)
	n.configMap("late", map[string]string{"k": "late"})
	n.arrives(v, "tls/ca.pem", "corp 2\n"+own+"\nlate\n", soon)
	n.secret("own", map[string]string{"other": n.canary()})
	n.hasEvent(v, "RefKeyNotFound", "references non-existent secret key: ca.crt")
	n.wantContent(v, "tls/ca.pem", "corp 2\n"+own+"\nlate\n")
	n.mustUnpublish(v)
	bad := n.volume(map[string]string{"sources": "[{join: {path: p}}]"})
	wantStatus(t, n.Publish(t.Context(), bad), codes.InvalidArgument, "sources[0].join.sources: Required value: must have at least one source")
	n.wantNothingLeft()
}
