// Package fleet tests kubectl-refvol with many plugins: real processes with real mounts, a real API server,
// and Kubernetes' own server of port-forwards for the nodes' kubelets.
package fleet

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/refvol/refvol/e2e/tools/controlplane"
	"github.com/refvol/refvol/e2e/tools/harness"
)

const pluginNamespace = "refvol-system"

// suite is what all tests share. The tests run one after the other: the commands look at all nodes.
type suite struct {
	*controlplane.ControlPlane
	dir string
	// plugin and command are the programs under test.
	plugin, command string
	// kubeconfig is the plugins', caller that of an account with the rights of deploy/kubectl-refvol.
	kubeconfig, caller string
}

// shared is set by TestMain before any test runs, and constant from then on.
var shared *suite

// neverReplied is where the kubelet's server waits for ever to close a stream of a client that went
// away before the reply to it was sent. A command that has given up does that.
const neverReplied = "github.com/moby/spdystream.(*Stream).waitWriteReply"

func TestMain(m *testing.M) {
	os.Exit(harness.Main(m, func(ctx context.Context) (func() error, error) {
		s, err := newSuite(ctx)
		shared = s
		return s.stop, err
	}, goleak.IgnoreAnyFunction(neverReplied)))
}

func newSuite(ctx context.Context) (_ *suite, err error) {
	s := &suite{}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.stop())
		}
	}()
	if s.dir, err = os.MkdirTemp("", "refvol-fl-"); err != nil {
		return s, err
	}
	if s.plugin, err = harness.BuildPlugin(ctx, s.dir, false, os.Stderr); err != nil {
		return s, err
	}
	if s.command, err = harness.BuildKubectlRefvol(ctx, s.dir, os.Stderr); err != nil {
		return s, err
	}
	if s.ControlPlane, err = harness.StartControlPlane(ctx, os.Stderr); err != nil {
		return s, err
	}
	s.kubeconfig = filepath.Join(s.dir, "plugin.kubeconfig")
	if _, err := harness.GrantPlugin(ctx, s.ControlPlane, s.kubeconfig); err != nil {
		return s, err
	}
	return s, s.grant(ctx)
}

func (s *suite) stop() error {
	var err error
	if s.ControlPlane != nil {
		err = s.ControlPlane.Stop()
	}
	return errors.Join(err, os.RemoveAll(s.dir))
}

const callerAccount = "operator"

// grant gives the caller what deploy/kubectl-refvol does, and nothing else.
func (s *suite) grant(ctx context.Context) error {
	repo, err := harness.Repository()
	if err != nil {
		return err
	}
	f, err := os.Open(filepath.Join(repo, "deploy", "kubectl-refvol", "rbac.yaml"))
	if err != nil {
		return err
	}
	defer f.Close()
	clusterRole, role := &rbacv1.ClusterRole{}, &rbacv1.Role{}
	documents := yaml.NewYAMLOrJSONDecoder(f, 4096)
	if err := errors.Join(documents.Decode(clusterRole), documents.Decode(role)); err != nil {
		return err
	}
	_, made := s.Client().RbacV1().ClusterRoles().Create(ctx, clusterRole, metav1.CreateOptions{})
	_, bound := s.Client().RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: callerAccount}, Subjects: caller(),
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: clusterRole.Name},
	}, metav1.CreateOptions{})
	s.caller = filepath.Join(s.dir, "caller.kubeconfig")
	_, err = harness.MakeAccount(ctx, s.ControlPlane, callerAccount, s.caller)
	return errors.Join(made, bound, s.grantIn(ctx, role.Namespace, role), err)
}

func caller() []rbacv1.Subject {
	return []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: pluginNamespace, Name: callerAccount}}
}

func (s *suite) grantIn(ctx context.Context, namespace string, role *rbacv1.Role) error {
	_, err := s.Client().RbacV1().Roles(namespace).Create(ctx, role, metav1.CreateOptions{})
	_, bindErr := s.Client().RbacV1().RoleBindings(namespace).Create(ctx, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: callerAccount}, Subjects: caller(),
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: role.Name},
	}, metav1.CreateOptions{})
	return errors.Join(err, bindErr)
}

// newNamespace makes a namespace in which the caller may get Secrets.
func newNamespace(t *testing.T) string {
	t.Helper()
	ns := must(shared.Client().CoreV1().Namespaces().Create(t.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "fl-"}}, metav1.CreateOptions{}))(t)
	role := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: "read"}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"secrets"}, Verbs: []string{"get"}},
	}}
	fatal(t, shared.grantIn(t.Context(), ns.Name, role))
	return ns.Name
}
