package suite

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"sync"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// signEvery is how often the signer looks for requests.
	signEvery = 200 * time.Millisecond
	// signedAgo is how far in the past the certificates begin: the API server takes up to 5 minutes. They are to be renewed 10 minutes after
	// their begin, which is the earliest that it takes.
	signedAgo  = 4 * time.Minute
	renewAfter = 10 * time.Minute
	// signedFor is the shortest life that the API server takes.
	signedFor = time.Hour
)

// signer issues the certificates that the kubelets request for the pods of a namespace. It is safe for concurrent use.
type signer struct {
	*namespace
	signerName  string
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey

	mu sync.Mutex
	// issued has the number of each certificate, which begins with 1, by the pod's name.
	issued map[string][]int64
	serial int64
}

// startSigner issues certificates until the test ends.
func (n *namespace) startSigner(name string) *signer {
	n.t.Helper()
	s := &signer{namespace: n, signerName: name, issued: map[string][]int64{}}
	if err := s.makeCA(); err != nil {
		n.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(n.t.Context())
	var running sync.WaitGroup
	running.Go(func() { s.run(ctx) })
	n.t.Cleanup(func() {
		cancel()
		running.Wait()
	})
	return s
}

func (s *signer) makeCA() (err error) {
	if s.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		return err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: s.signerName}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, s.key.Public(), s.key)
	if err != nil {
		return err
	}
	s.certificate, err = x509.ParseCertificate(der)
	return err
}

// run answers the requests of the namespace until ctx ends. What fails is logged and tried again, as a busy API server may be the cause.
func (s *signer) run(ctx context.Context) {
	ticker := time.NewTicker(signEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if err := s.answer(ctx); err != nil && ctx.Err() == nil {
			s.t.Log(err)
		}
	}
}

// answer issues a certificate for each request that has none.
func (s *signer) answer(ctx context.Context) error {
	requests := s.client.CertificatesV1().PodCertificateRequests(s.name)
	all, err := requests.List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list the requests for certificates: %w", err)
	}
	var errs []error
	for i := range all.Items {
		r := &all.Items[i]
		if r.Spec.SignerName != s.signerName || len(r.Status.Conditions) > 0 {
			continue
		}
		serial, err := s.sign(r)
		if err == nil {
			_, err = requests.UpdateStatus(ctx, r, metav1.UpdateOptions{})
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("sign the request %s: %w", r.Name, err))
			continue
		}
		s.mu.Lock()
		s.issued[r.Spec.PodName] = append(s.issued[r.Spec.PodName], serial)
		s.mu.Unlock()
	}
	return errors.Join(errs...)
}

// sign puts a certificate into the status of a request, and returns its number.
func (s *signer) sign(r *certificatesv1.PodCertificateRequest) (int64, error) {
	request, err := x509.ParseCertificateRequest(r.Spec.StubPKCS10Request)
	if err != nil {
		return 0, fmt.Errorf("parse its PKCS#10 request: %w", err)
	}
	s.serial++
	begin := time.Now().UTC().Truncate(time.Second).Add(-signedAgo)
	end := begin.Add(signedFor)
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(s.serial), Subject: pkix.Name{CommonName: r.Spec.PodName}, NotBefore: begin, NotAfter: end,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}, s.certificate, request.PublicKey, s.key)
	if err != nil {
		return 0, err
	}
	r.Status = certificatesv1.PodCertificateRequestStatus{
		Conditions: []metav1.Condition{{
			Type: certificatesv1.PodCertificateRequestConditionTypeIssued, Status: metav1.ConditionTrue, Reason: "Issued", LastTransitionTime: metav1.Now(),
		}},
		CertificateChain: string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})),
		NotBefore:        new(metav1.NewTime(begin)), BeginRefreshAt: new(metav1.NewTime(begin.Add(renewAfter))), NotAfter: new(metav1.NewTime(end)),
	}
	return s.serial, nil
}

// issuedTo returns the numbers of the certificates that a pod got, in their order.
func (s *signer) issuedTo(pod string) []int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]int64(nil), s.issued[pod]...)
}

// needsPodCertificates leaves the test out where the API server has no requests for certificates of pods.
func (n *namespace) needsPodCertificates(t *testing.T) {
	t.Helper()
	resources, err := n.client.Discovery().ServerResourcesForGroupVersion(certificatesv1.SchemeGroupVersion.String())
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range resources.APIResources {
		if r.Name == "podcertificaterequests" {
			return
		}
	}
	t.Skip("SKIP: the API server lacks PodCertificateRequests, which are on by default from Kubernetes 1.37 on")
}
