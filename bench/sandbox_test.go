//go:build bench

package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/shared/openstack"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// The sandbox is shared and may be restarted for a moment by somebody else, so what fails is tried again.
const (
	patience = 2 * time.Minute
	pause    = 2 * time.Second
)

// waitForSandbox waits until Keystone, Nova, Glance and Neutron answer.
func waitForSandbox(t *testing.T) {
	t.Helper()
	config := sandboxConfig(t)
	cloud := sandboxCloud(t)
	account, err := cloud.Account(config, openstack.Credentials{})
	if err != nil {
		t.Fatal(err)
	}
	again(t, func() error {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		session, err := account.Login(ctx)
		if err != nil {
			return err
		}
		_, nova := session.Flavors(ctx)
		_, glance := session.Images(ctx, "")
		_, neutron := session.Networks(ctx)
		return errors.Join(nova, glance, neutron)
	})
}

// again calls until there is no error, or patience is over.
func again(t *testing.T, call func() error) {
	t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(pause) {
		err := call()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("the sandbox does not come back: %v", err)
		}
	}
}

func sandboxConfig(t *testing.T) openstack.Config {
	t.Helper()
	return openstack.Config{Cloud: "collector", ConfigFile: testkit.CloudsYAML(t)}
}

// sandboxCloud is the sandbox as our functions see it.
func sandboxCloud(t *testing.T) *openstack.Cloud {
	t.Helper()
	cloud, err := openstack.New(sandboxConfig(t), openstack.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return cloud
}

// fetch makes one GET and reads the answer to its end. The client keeps its connection.
func fetch(client *http.Client, url string, header http.Header) (body []byte, took float64, err error) {
	req, err := http.NewRequestWithContext(context.Background(), http.MethodGet, url, nil)
	if err != nil {
		return nil, 0, err
	}
	req.Header = header
	began := time.Now()
	resp, err := client.Do(req)
	if err != nil {
		return nil, 0, err
	}
	defer resp.Body.Close()
	body, err = io.ReadAll(resp.Body)
	took = ms(time.Since(began))
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s %s", url, resp.Status, body)
	}
	return body, took, err
}

func newClient() *http.Client {
	return &http.Client{Timeout: time.Minute, Transport: &http.Transport{MaxIdleConnsPerHost: 4}}
}
