package controlplane

import (
	"context"
	"fmt"
	"os"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/util/keyutil"
)

const (
	tokenFile       = "tokens.csv"
	signingKeyFile  = "service-account.key"
	certificateFile = "certs/apiserver.crt"
)

// writeCredentials writes the administrator's token, which is new at every start,
// and the key that signs the tokens of service accounts.
func (c *ControlPlane) writeCredentials() error {
	line := fmt.Sprintf("%s,admin,admin,\"system:masters\"\n", c.token)
	if err := os.WriteFile(c.path(tokenFile), []byte(line), 0o600); err != nil {
		return fmt.Errorf("write the administrator's token: %w", err)
	}
	key, err := keyutil.MakeEllipticPrivateKeyPEM()
	if err != nil {
		return fmt.Errorf("generate the signing key: %w", err)
	}
	if err := os.WriteFile(c.path(signingKeyFile), key, 0o600); err != nil {
		return fmt.Errorf("write the signing key: %w", err)
	}
	return nil
}

func (c *ControlPlane) address() string {
	return fmt.Sprintf("https://127.0.0.1:%d", c.port.number)
}

// adminConfig trusts the certificate that the server made for itself. It sets no
// limit on requests: the tests measure the server and the plugin, not a client.
func (c *ControlPlane) adminConfig() (*rest.Config, error) {
	ca, err := os.ReadFile(c.path(certificateFile))
	if err != nil {
		return nil, fmt.Errorf("read the API server's certificate: %w", err)
	}
	return &rest.Config{
		Host:            c.address(),
		BearerToken:     c.token,
		TLSClientConfig: rest.TLSClientConfig{CAData: ca},
		QPS:             -1,
	}, nil
}

// WriteKubeconfig writes a kubeconfig file, mode 0600, that carries token.
func (c *ControlPlane) WriteKubeconfig(path, token string) error {
	const name = "refvol"
	config := clientcmdapi.NewConfig()
	config.Clusters[name] = &clientcmdapi.Cluster{
		Server:                   c.config.Host,
		TLSServerName:            c.config.ServerName,
		CertificateAuthorityData: c.config.CAData,
	}
	config.AuthInfos[name] = &clientcmdapi.AuthInfo{Token: token}
	config.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
	config.CurrentContext = name
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		return fmt.Errorf("write the kubeconfig %s: %w", path, err)
	}
	return nil
}

// PodToken returns a token of a pod's service account that is bound to the pod, as the kubelet
// mounts one into it.
func (c *ControlPlane) PodToken(ctx context.Context, pod *corev1.Pod, lifetime time.Duration) (string, error) {
	bound := &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID}
	return c.accountToken(ctx, pod.Namespace, pod.Spec.ServiceAccountName, lifetime, bound)
}

// ServiceAccountToken returns a token of an existing service account that is good
// for the given time, ten minutes at least.
func (c *ControlPlane) ServiceAccountToken(ctx context.Context, namespace, name string, lifetime time.Duration) (string, error) {
	return c.accountToken(ctx, namespace, name, lifetime, nil)
}

func (c *ControlPlane) accountToken(ctx context.Context, namespace, name string, lifetime time.Duration, bound *authenticationv1.BoundObjectReference) (string, error) {
	request := &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: new(int64(lifetime.Seconds())), BoundObjectRef: bound},
	}
	answer, err := c.client.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, name, request, metav1.CreateOptions{})
	if err != nil {
		return "", fmt.Errorf("token of service account %s/%s: %w", namespace, name, err)
	}
	return answer.Status.Token, nil
}
