package harness

import (
	"context"
	"fmt"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/kubernetes"

	"github.com/refvol/refvol/e2e/tools/controlplane"
)

// asNodeAccount is the account of a plugin with --identity=node, and the name of its pod.
const asNodeAccount = "refvol-plugin-as-node"

// GrantAsNode makes a service account with what deploy/components/node-identity gives the plugin, a pod of it on
// NodeName, and a kubeconfig file with a token that is bound to the pod. It returns once the API server lets a plugin
// with that token read as the node. The first call on a machine builds kubectl.
func GrantAsNode(ctx context.Context, c *controlplane.ControlPlane, kubeconfig string) error {
	rules, err := Rules(ctx, "node-identity")
	if err != nil {
		return err
	}
	if err := GrantRules(ctx, c, asNodeAccount, kubeconfig, rules); err != nil {
		return err
	}
	pod := newPod(NodeName, pluginNamespace, asNodeAccount, uuid.NewUUID())
	pod.Spec.ServiceAccountName = asNodeAccount
	if err := c.PutPod(ctx, pod); err != nil {
		return err
	}
	token, err := c.PodToken(ctx, pod, tokenLifetime)
	if err != nil {
		return err
	}
	if err := c.WriteKubeconfig(kubeconfig, token); err != nil {
		return err
	}
	config := c.Config()
	config.BearerToken = token
	config.Impersonate.UserName = nodeUser
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	return Poll(ctx, patience, 10*time.Millisecond, func() error {
		_, err := client.CoreV1().Pods(pluginNamespace).Get(ctx, asNodeAccount, metav1.GetOptions{})
		return err
	})
}

// nodeUser is the user of NodeName's kubelet, nodesGroup the group of all of them.
const nodeUser, nodesGroup = "system:node:" + NodeName, "system:nodes"

// AwaitPod waits until the API server's Node authorizer knows that a pod is on NodeName. It hears of pods in the
// order of their changes.
func AwaitPod(ctx context.Context, c *controlplane.ControlPlane, namespace, name string) error {
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: nodeUser, Groups: []string{nodesGroup},
		ResourceAttributes: &authorizationv1.ResourceAttributes{Namespace: namespace, Name: name, Verb: "get", Version: "v1", Resource: "pods"},
	}}
	return Poll(ctx, patience, 10*time.Millisecond, func() error {
		answer, err := c.Client().AuthorizationV1().SubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
		if err == nil && !answer.Status.Allowed {
			err = fmt.Errorf("the API server does not let %s get pod %s/%s: %s", nodeUser, namespace, name, answer.Status.Reason)
		}
		return err
	})
}

// NativeConfigMap returns a volume of a pod that shows a ConfigMap.
func NativeConfigMap(name, configMap string) corev1.Volume {
	return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{
		ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: configMap}},
	}}
}
