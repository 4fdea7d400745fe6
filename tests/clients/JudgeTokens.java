// Kafka's side of test_oauth_judgement.py: checks each access token of the standard input with Kafka's own validator.
// Run as `java -cp 'libs/*' JudgeTokens.java KEYS_URL`; a line has `open` or `strict` and a token, and the answer is
// "accepted SUBJECT EXPIRES_MS" or "refused".

import java.util.*;
import javax.security.auth.login.AppConfigurationEntry;
import javax.security.auth.login.AppConfigurationEntry.LoginModuleControlFlag;
import org.apache.kafka.common.security.oauthbearer.*;

public class JudgeTokens {
    public static void main(String[] args) {
        System.setProperty("org.apache.kafka.sasl.oauthbearer.allowed.urls", args[0]);
        Map<String, BrokerJwtValidator> validators = Map.of(
                "open", validator(args[0], List.of(), null),
                "strict", validator(args[0], List.of("kafka", "logs"), "https://issuer.example"));
        Scanner lines = new Scanner(System.in);
        while (lines.hasNextLine()) {
            String[] words = lines.nextLine().split(" ", 2);
            try {
                OAuthBearerToken token = validators.get(words[0]).validate(words[1]);
                System.out.println("accepted " + token.principalName() + " " + token.lifetimeMs());
            } catch (Exception refused) {
                System.out.println("refused");
            }
        }
    }

    static BrokerJwtValidator validator(String keys, List<String> audiences, String issuer) {
        Map<String, Object> configs = new HashMap<>();
        configs.put("sasl.oauthbearer.jwks.endpoint.url", keys);
        configs.put("sasl.oauthbearer.expected.audience", audiences);
        configs.put("sasl.oauthbearer.expected.issuer", issuer);
        configs.put("sasl.oauthbearer.scope.claim.name", "scope");
        configs.put("sasl.oauthbearer.sub.claim.name", "sub");
        configs.put("sasl.oauthbearer.clock.skew.seconds", 30);
        BrokerJwtValidator validator = new BrokerJwtValidator();
        AppConfigurationEntry login = new AppConfigurationEntry(
                OAuthBearerLoginModule.class.getName(), LoginModuleControlFlag.REQUIRED, Map.of());
        validator.configure(configs, "OAUTHBEARER", List.of(login));
        return validator;
    }
}
